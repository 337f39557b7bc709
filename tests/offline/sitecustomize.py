"""On PYTHONPATH while notebooks are tested: their kernels, and Python processes they start, have no network."""

from utils.offline import block_network

block_network()
