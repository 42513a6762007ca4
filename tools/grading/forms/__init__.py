"""Problems and submissions in the forms of other graders: KernelBot, KernelBench and flashinfer-bench."""
