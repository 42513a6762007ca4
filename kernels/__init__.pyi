"""What type checkers see of the folder, which has no __init__.py; namespace.py gives it these names."""

from packproof.kernels.attention import attention as attention
from packproof.kernels.causal_conv1d import causal_conv1d as causal_conv1d
from packproof.kernels.grouped_mm import grouped_mm as grouped_mm
from packproof.kernels.hadamard import hadamard as hadamard
from packproof.kernels.linear_attention import linear_attention as linear_attention
from packproof.kernels.linear_attention import retention as retention
from packproof.kernels.linear_attention import simple_gla as simple_gla
from packproof.kernels.quantize_fp8 import quantize_fp8 as quantize_fp8
from packproof.kernels.quantize_fp8 import round_fp8 as round_fp8
from packproof.kernels.rope import rope as rope
from packproof.kernels.rope import rope_qk as rope_qk
from packproof.kernels.rope_hadamard import rope_hadamard as rope_hadamard
from packproof.kernels.selective_scan import selective_scan as selective_scan
from packproof.kernels.ssd import ssd as ssd
