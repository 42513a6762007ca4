"""The domain of a kernel that declares none, inferred from the calls it accepts and refuses."""
