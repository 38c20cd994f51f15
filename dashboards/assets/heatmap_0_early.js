// The data of the picture that the address asks for are fetched while Dash is still starting; the page then takes them if
// they are what it shows.
"use strict";
(function () {
  const M = window.megascope;
  if (window.location.pathname !== "/heatmap") return;
  const query = new URLSearchParams(window.location.search);
  for (const name of ["zoom", "token"]) query.delete(name);
  let found = null;
  const answered = fetch(`/data/heatmap/early?${query}`)
    .then(async (answer) => {
      const bytes = answer.status === 200 ? await answer.arrayBuffer() : null;
      if (bytes) found = { ok: true, source: M.unpack(bytes).meta.source, arrayBuffer: async () => bytes };
    })
    .catch(() => null); // the page asks again, and says what is wrong
  // The answer for a source, or null. What the server chooses by itself may have changed: nobody waits for that.
  M.early = async (source) => {
    M.early = null;
    if (query.has("segment")) await answered;
    return found && found.source === source ? found : null;
  };
})();
