"""The testbed of several hosts: the inventory, SSH connections and leases, playbooks, and the testbed itself."""
