#!/usr/bin/env bash
# Gets what the local cluster needs and this module doesn't build: OVN's programs from the distribution, and a real
# Kubernetes control plane built from the modules pinned in tools/cluster.
#
#   hack/tools.sh modules DIR...  fetch what the Go modules in these directories are built from; a network that fails is
#                             tried again
#   hack/tools.sh ovn         install OVN's packages that are missing (Debian and its children, as root)
#   hack/tools.sh prometheus  the same for Prometheus and promtool, which test the alerts
#   hack/tools.sh browser     the same for Chromium, which tests the page
#   hack/tools.sh cluster     build etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl
#   hack/tools.sh certmanager build cert-manager's controllers, and lay its kinds beside them
#
# 'cluster' and 'certmanager' print the directory of the programs on stdout; all progress goes to stderr. All do nothing
# when there is nothing to do, and may run several at once. The first build takes about a quarter of an hour on two cores.
# BERTH_CACHE is where built programs are kept (default ~/.cache/berth).
# BERTH_K8S is the release of Kubernetes: 1.34, 1.35, 1.36 or 1.37, the one that tools/cluster pins (default).
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

# missing PACKAGE...: those that are not installed.
missing() {
  local p
  for p in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
  done
}

# packages PACKAGE...: installs those that are missing. Their services must not come up: the distribution's own switch
# would look for the kernel's datapath and its default sockets.
packages() {
  local list p policy=/usr/sbin/policy-rc.d
  [ -n "$(missing "$@")" ] || return 0
  [ "$(id -u)" = 0 ] || { say "missing:" $(missing "$@") "- run this as root"; exit 1; }
  locked packages
  list=$(missing "$@")
  [ -n "$list" ] || return 0
  say "installing" $list
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    # shellcheck disable=SC2064
    trap "rm -f '$policy'" EXIT
  fi
  # A fresh machine may be busy updating itself: wait for it.
  apt-get -o DPkg::Lock::Timeout=300 update -qq >&2
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $list >&2
  if [ -d /run/systemd/system ]; then
    for p in ovn-central ovn-host openvswitch-switch prometheus; do
      case " $(echo $list) " in *" $p "*) systemctl disable --now "$p" >&2 || true ;; esac
    done
  fi
}

# programs NAME...: fails when one is not there, where packages can't be installed.
programs() {
  local p
  for p in "$@"; do
    command -v "$p" >/dev/null || { say "no $p: install it by this system's means. Needed are: $*"; exit 1; }
  done
}

ovn() {
  if ! command -v dpkg-query >/dev/null; then
    programs ovn-nbctl ovn-northd ovn-controller ovs-vswitchd ovsdb-server ip ping ethtool
    return
  fi
  packages ovn-central ovn-host openvswitch-switch iproute2 iputils-ping ethtool
}

prometheus() {
  ! command -v promtool >/dev/null || return 0
  if ! command -v dpkg-query >/dev/null; then
    programs promtool
    return
  fi
  packages prometheus
}

browser() {
  ! command -v chromium >/dev/null || return 0
  if ! command -v dpkg-query >/dev/null; then
    programs chromium
    return
  fi
  packages chromium
}

modules() {
  local module packages try
  for module in "$@"; do
    packages=./...
    ! grep -q '^tool' "$repo/$module/go.mod" || packages=tool
    for try in 1 2 3 4 5; do
      (cd "$repo/$module" && go list -deps -test -tags e2e "$packages" >/dev/null) && break
      [ "$try" -lt 5 ] || { say "the modules of $module can't be fetched: check the network, then run this again"; exit 1; }
      say "fetching the modules of $module failed: trying again"
      sleep $((try * 5))
    done
  done
}

# release: the newest patch known here of the release that is asked for; empty for that of tools/cluster.
release() {
  case "${BERTH_K8S:-}" in
    "" | 1.37) ;;
    1.36) echo v1.36.3 ;;
    1.35) echo v1.35.4 ;;
    1.34) echo v1.34.4 ;;
    *) say "BERTH_K8S=$BERTH_K8S is not known: take 1.34, 1.35, 1.36 or 1.37"; exit 1 ;;
  esac
}

# kubernetes VERSION: makes a module of that version of Kubernetes' programs, like tools/cluster, and prints its directory.
# Go's checksum database vouches for what it is resolved to.
kubernetes() {
  local version=$1 dir=$cache/modules/$1 replaces
  if [ ! -e "$dir/.complete" ]; then
    locked modules
    if [ ! -e "$dir/.complete" ]; then
      say "resolving Kubernetes $version"
      rm -rf "$dir"
      mkdir -p "$dir"
      { echo 'module github.com/berth-net/berth/tools/cluster'; grep '^go ' "$repo/tools/cluster/go.mod"; } >"$dir/go.mod"
      # Kubernetes' modules that lie beside it in its repository have versions of their own in the world.
      replaces=$(cd "$dir" && own=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^[[:space:]]*"GoMod": "\(.*\)",*$/\1/p') &&
        sed -n "s#^[[:space:]]*\(k8s\.io/[^ ]*\) => \./staging/.*#-replace=\1=\1@v0${version#v1}#p" "$own")
      [ -n "$replaces" ] || { say "Kubernetes $version can't be downloaded: see above"; exit 1; }
      # shellcheck disable=SC2086
      (cd "$dir" && go mod edit $replaces "-require=k8s.io/kubernetes@$version" &&
        go get -tool k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubectl}"@$version") >&2 ||
        { say "Kubernetes $version can't be resolved: see above"; exit 1; }
      touch "$dir/.complete"
    fi
  fi
  echo "$dir"
}

cluster() {
  local pinned=$repo/tools/cluster module version hash out build pkg name from
  version=$(release)
  module=$pinned
  [ -z "$version" ] || module=$(kubernetes "$version")
  hash=$(for from in "$pinned" "$module"; do
    cat "$from/go.mod" "$from/go.sum"
    [ "$module" != "$pinned" ] || break
  done | sha256sum | cut -c1-16)
  out=$cache/bin/$hash
  if [ ! -e "$out/.complete" ]; then
    locked cluster
    if [ ! -e "$out/.complete" ]; then
      mkdir -p "$out"
      while read -r name pkg from; do
        [ ! -x "$out/$name" ] || continue
        say "building $name from $from"
        build=$(mktemp "$out/.$name.XXXXXX")
        (cd "$from" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$build" "$pkg") >&2 </dev/null ||
          { rm -f "$build"; say "$name did not build: see above, then run this again"; exit 1; }
        chmod 755 "$build"
        mv "$build" "$out/$name"
      done <<LIST
etcd go.etcd.io/etcd/server/v3 $pinned
kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver $module
kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager $module
kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler $module
kubectl k8s.io/kubernetes/cmd/kubectl $module
LIST
      touch "$out/.complete"
    fi
  fi
  echo "$out"
}

certmanager() {
  local module=$repo/tools/certmanager hash out build kinds
  hash=$(cat "$module/go.mod" "$module/go.sum" "$module"/*.go | sha256sum | cut -c1-16)
  out=$cache/certmanager/$hash
  if [ ! -e "$out/.complete" ]; then
    locked certmanager
    if [ ! -e "$out/.complete" ]; then
      mkdir -p "$out/kinds"
      say "building cert-manager's controllers"
      build=$(mktemp "$out/.certmanager.XXXXXX")
      (cd "$module" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$build" .) >&2 </dev/null ||
        { rm -f "$build"; say "certmanager did not build: see above, then run this again"; exit 1; }
      kinds=$(cd "$module" && go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)/deploy/crds
      install -m 644 "$kinds"/cert-manager.io_*.yaml "$out/kinds"
      chmod 755 "$build"
      mv "$build" "$out/certmanager"
      touch "$out/.complete"
    fi
  fi
  echo "$out"
}

case "${1:-}" in
  modules | ovn | prometheus | browser | cluster | certmanager) "$@" ;;
  *) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
