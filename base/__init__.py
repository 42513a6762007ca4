"""What every room shares: errors, axes and signatures, checks of arguments, names, files and records."""
