// Package browser drives the page for people in a real browser. It is a module of its own, so that the product depends on
// nothing of it: go -C tools/browser test ./... needs chromium, which hack/tools.sh browser installs.
package browser
