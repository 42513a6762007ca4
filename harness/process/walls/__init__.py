"""The walls between a kernel and the machine, kept by the operating system."""
