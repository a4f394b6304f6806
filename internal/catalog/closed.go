package catalog

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/jsonpatch"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// MarkClosed marks a subnet as closed, for everybody and durably, and gives the mark. Every call writes another mark, so
// that one which was written while the worker looked is not taken off by what it saw before.
func MarkClosed(ctx context.Context, c client.Client, random io.Reader, subnet *kubeovnv1.Subnet, reason string) (string, error) {
	var b [4]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return "", fmt.Errorf("drawing a mark: %w", err)
	}
	mark := reason + " (" + hex.EncodeToString(b[:]) + ")"
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": subnet.UID,
		"annotations": map[string]string{network.ClosedKey: mark}}})
	if err != nil {
		return "", err
	}
	obj := &kubeovnv1.Subnet{}
	obj.Name = subnet.Name
	if err := c.Patch(ctx, obj, client.RawPatch(types.MergePatchType, body)); err != nil {
		return "", fmt.Errorf("mark subnet %s as closed: %w", subnet.Name, err)
	}
	return mark, nil
}

// UnmarkClosed takes exactly this mark off again. Another one stays, which is an error.
func UnmarkClosed(ctx context.Context, c client.Client, subnet *kubeovnv1.Subnet, mark string) error {
	path := jsonpatch.At(jsonpatch.Annotations, network.ClosedKey)
	body, err := json.Marshal([]jsonpatch.Operation{jsonpatch.Test(jsonpatch.UID, subnet.UID), jsonpatch.Test(path, mark), jsonpatch.Remove(path)})
	if err != nil {
		return err
	}
	obj := &kubeovnv1.Subnet{}
	obj.Name = subnet.Name
	if err := c.Patch(ctx, obj, client.RawPatch(types.JSONPatchType, body)); err != nil {
		return fmt.Errorf("take the mark off subnet %s: %w", subnet.Name, err)
	}
	return nil
}
