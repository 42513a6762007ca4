"""What a failure looks like: where a tensor is wrong and by how much, and which sequence leaked into which."""
