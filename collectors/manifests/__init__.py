"""Which files of a store are valid, and since when: manifests, their entries, the store's marker."""
