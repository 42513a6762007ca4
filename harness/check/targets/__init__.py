"""The kernels of a run: imported, with their ops, promises and domains; those of packproof itself."""
