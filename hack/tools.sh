#!/usr/bin/env bash
# Gets what the local cluster needs and this module doesn't build: OVN's programs from the distribution, and a real
# Kubernetes control plane built from the modules pinned in tools/cluster.
#
#   hack/tools.sh ovn       install the packages that are missing (Debian and its children, as root)
#   hack/tools.sh cluster   build etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl
#
# 'cluster' prints the directory of the programs on stdout; all progress goes to stderr. Both do nothing when there is
# nothing to do, and may run several at once. The first build takes about a quarter of an hour on two cores.
# BERTH_CACHE is where built programs are kept (default ~/.cache/berth).
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${BERTH_CACHE:-${HOME:?set HOME or BERTH_CACHE}/.cache/berth}

say() { echo "tools.sh: $*" >&2; }

# locked NAME: holds a lock of that name until the script ends.
locked() {
  mkdir -p "$cache"
  exec 9>"$cache/$1.lock"
  flock -n 9 || { say "waiting for another run of '$1'"; flock 9; }
}

missing_packages() {
  local p
  for p in ovn-central ovn-host openvswitch-switch iproute2 iputils-ping ethtool; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
  done
}

ovn() {
  local missing policy=/usr/sbin/policy-rc.d
  if ! command -v dpkg-query >/dev/null; then
    local p
    for p in ovn-nbctl ovn-northd ovn-controller ovs-vswitchd ovsdb-server ip ping ethtool; do
      command -v "$p" >/dev/null || { say "no $p: install OVN, Open vSwitch, iproute2, ping and ethtool by this system's means"; exit 1; }
    done
    return
  fi
  [ -n "$(missing_packages)" ] || return 0
  [ "$(id -u)" = 0 ] || { say "missing:" $(missing_packages) "- run this as root"; exit 1; }
  locked ovn
  missing=$(missing_packages)
  [ -n "$missing" ] || return 0
  say "installing" $missing
  # The distribution's own switch must not come up: it would look for the kernel's datapath and its default sockets.
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    # shellcheck disable=SC2064
    trap "rm -f '$policy'" EXIT
  fi
  apt-get update -qq >&2
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
  if [ -d /run/systemd/system ]; then
    local service
    for service in ovn-central ovn-host openvswitch-switch; do
      case " $(echo $missing) " in *" $service "*) systemctl disable --now "$service" >&2 || true ;; esac
    done
  fi
}

cluster() {
  local module=$repo/tools/cluster hash out build pkg name
  hash=$(cat "$module/go.mod" "$module/go.sum" | sha256sum | cut -c1-16)
  out=$cache/bin/$hash
  if [ ! -e "$out/.complete" ]; then
    locked cluster
    if [ ! -e "$out/.complete" ]; then
      mkdir -p "$out"
      while read -r name pkg; do
        [ ! -x "$out/$name" ] || continue
        say "building $name"
        build=$(mktemp "$out/.$name.XXXXXX")
        (cd "$module" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$build" "$pkg") >&2 </dev/null ||
          { rm -f "$build"; say "$name did not build: see above, then run this again"; exit 1; }
        chmod 755 "$build"
        mv "$build" "$out/$name"
      done <<'LIST'
etcd go.etcd.io/etcd/server/v3
kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager
kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler
kubectl k8s.io/kubernetes/cmd/kubectl
LIST
      touch "$out/.complete"
    fi
  fi
  echo "$out"
}

case "${1:-}" in
  ovn | cluster) "$1" ;;
  *) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
