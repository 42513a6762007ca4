"""What a failure looks like: where and by how much a tensor is wrong, and which sequence leaked into another."""
