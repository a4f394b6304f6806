package app

import _ "k8s.io/cli-runtime/pkg/genericclioptions"
