"""Communication: who arrives late, whom that makes wait, and which links are slow although all have arrived."""
