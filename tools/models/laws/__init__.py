"""The properties of a module: what each compares, how it is judged, and the module that is to blame."""
