package topology

// globalOptions are those of the whole database (contract 3.8). use_ct_inv_match keeps matches out of flows that network
// cards can't offload; the other two are about load balancers on switches, and are known to Kube-OVN's build of OVN only:
// others ignore them.
func globalOptions() map[string]string {
	return map[string]string{"ls_dnat_mod_dl_dst": "true", "use_ct_inv_match": "false", "ls_ct_skip_dst_lport_ips": "true"}
}
