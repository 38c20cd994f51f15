"""Where a store lies: a folder, which is a `pathlib.Path`, or a prefix of an object store, which looks like one."""
