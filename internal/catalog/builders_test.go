package catalog

import (
	"testing"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

func kinds(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{AddToScheme, appsv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// cluster is an API server with these objects.
func cluster(t testing.TB, objs ...client.Object) client.WithWatch {
	t.Helper()
	return fake.NewClientBuilder().WithScheme(kinds(t)).WithObjects(objs...).Build()
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": name}}}
}

func subnet(name, cidr string, change ...func(*kubeovnv1.Subnet)) *kubeovnv1.Subnet {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr}}
	for _, c := range change {
		c(s)
	}
	return s
}

func serving(provider string) func(*kubeovnv1.Subnet) {
	return func(s *kubeovnv1.Subnet) { s.Spec.Provider = provider }
}

func attachment(namespace, name, config string) *netv1.NetworkAttachmentDefinition {
	return &netv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: netv1.NetworkAttachmentDefinitionSpec{Config: config}}
}

func ip(name, subnet, address, mac string) *kubeovnv1.IP {
	return &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IPSpec{Subnet: subnet, V4IPAddress: address, MacAddress: mac}}
}

func vip(name, subnet, v4, v6 string) *kubeovnv1.Vip {
	return &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VipSpec{Subnet: subnet}, Status: kubeovnv1.VipStatus{V4IP: v4, V6IP: v6}}
}

func node(name string, addresses ...corev1.NodeAddress) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: addresses}}
}

func pod(annotations ...string) network.Pod {
	p := network.Pod{Namespace: "default", Name: "web", Annotations: map[string]string{}}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	return p
}

func config() network.Config {
	return network.Config{DefaultSubnet: "ovn-default", ClusterRouter: "ovn-cluster", NodeSwitch: "join", PodNICType: "veth-pair"}
}
