"""The Linux kernel and Towpath as each other's peers, over one link in a network namespace of their own."""
