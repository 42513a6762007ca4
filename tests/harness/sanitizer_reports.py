"""What compute-sanitizer prints, in the forms of its versions, for each of the tools that a check can run."""

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at _scale_kernel+0x160 in kernels.py:41
=========     by thread (2,0,0) in block (1,0,0)
=========     Access to 0x7f1f2c00080c is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f1f2c000800 of size 12 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x2d3f1a] in libcuda.so.1
=========         Host Frame: _launch in main.c:120 [0x2b7a] in __triton_launcher.so
=========
========= Invalid __global__ write of size 4 bytes
=========     at _scale_kernel+0x160 in kernels.py:41
=========     by thread (3,0,0) in block (1,0,0)
=========     Access to 0x7f1f2c000810 is out of bounds
=========
========= ERROR SUMMARY: 2 errors
"""

MEMCHECK_OLDER = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 8 bytes
=========     at 0x00000170 in /src/sum.cu:4:void sums<(bool)0>(double *, int)
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6510c00001 is out of bounds
========= ERROR SUMMARY: 1 error
"""

RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum_blocks(int *, int *)+0xf0 in racecheck.cu:12
=========     and Read access at sum_blocks(int *, int *)+0xd0 in racecheck.cu:12 [32 hazards]
=========     and Write access at sum_blocks(int *, int *)+0xf0 in racecheck.cu:12 [4 hazards]
=========
========= Warning: Race reported between Read access at other(int *)+0xf0
=========     and Write access at other(int *)+0x100 [4 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""

INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70 in memset_error.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""

CLEAN = """\
========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
