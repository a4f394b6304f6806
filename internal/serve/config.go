package serve

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

const (
	configFlag = "config"
	printFlag  = "print-config"
)

// ErrUnknownKey is of a configuration file that has a key which is no flag.
var ErrUnknownKey = errors.New("there is no such setting")

// Config reads the settings that no flag says from a file. Its keys are the flags' names.
type Config struct {
	// File is in YAML, strict: an unknown or repeated key is an error. Empty for none.
	File string
	// Print makes the program print what it would run with, and end.
	Print bool
}

// Register adds --config and --print-config.
func (c *Config) Register(fs *pflag.FlagSet) {
	fs.StringVar(&c.File, configFlag, c.File, "YAML file of settings, by the names of the flags; flags win")
	fs.BoolVar(&c.Print, printFlag, c.Print, "print all settings in the form of --config, and end")
}

// Command registers the flags with a command and makes it run with what the file says, or print that.
func (c *Config) Command(cmd *cobra.Command, run func(cmd *cobra.Command) error) {
	c.Register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.Load(cmd.Flags()); err != nil {
			return err
		}
		if c.Print {
			return WriteConfig(cmd.OutOrStdout(), cmd.Flags())
		}
		return run(cmd)
	}
}

// Load sets the flags of fs that the file speaks of and the command line does not. All that is wrong is told at once.
func (c *Config) Load(fs *pflag.FlagSet) error {
	if c.File == "" {
		return nil
	}
	raw, err := os.ReadFile(c.File)
	if err != nil {
		return fmt.Errorf("settings, check --config: %w", err)
	}
	var settings map[string]any
	if err := yaml.UnmarshalStrict(raw, &settings); err != nil {
		return fmt.Errorf("settings of %s are not a map in YAML: %w", c.File, err)
	}
	var errs []error
	for key, value := range settings {
		if err := c.set(fs, key, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", c.File, key, err))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) set(fs *pflag.FlagSet, key string, value any) error {
	flag := fs.Lookup(key)
	if flag == nil || ofConfig(flag) {
		return fmt.Errorf("%w: --print-config lists all", ErrUnknownKey)
	}
	if flag.Changed {
		return nil
	}
	texts, err := texts(value)
	if err != nil {
		return err
	}
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return list.Replace(texts)
	}
	if len(texts) != 1 {
		return errors.New("write one value")
	}
	return flag.Value.Set(texts[0])
}

// texts writes a value of YAML as flags do: a list as several.
func texts(value any) ([]string, error) {
	switch v := value.(type) {
	case string:
		return []string{v}, nil
	case bool:
		return []string{strconv.FormatBool(v)}, nil
	case float64: // JSON's only number
		return []string{strconv.FormatFloat(v, 'f', -1, 64)}, nil
	case []any:
		all := []string{}
		for _, x := range v {
			one, err := texts(x)
			if err != nil || len(one) != 1 {
				return nil, errors.New("write a list of plain values")
			}
			all = append(all, one...)
		}
		return all, nil
	}
	return nil, errors.New("write a plain value or a list of them")
}

// WriteConfig writes all settings in the form of the file that Load reads.
func WriteConfig(w io.Writer, fs *pflag.FlagSet) error {
	settings := map[string]any{}
	fs.VisitAll(func(f *pflag.Flag) {
		if !ofConfig(f) {
			settings[f.Name] = setting(f.Value)
		}
	})
	raw, err := yaml.Marshal(settings)
	if err != nil {
		return fmt.Errorf("settings can't be written: %w", err)
	}
	_, err = w.Write(raw)
	return err
}

func setting(v pflag.Value) any {
	if list, ok := v.(pflag.SliceValue); ok {
		return append([]string{}, list.GetSlice()...)
	}
	text := v.String()
	switch v.Type() {
	case "bool":
		if b, err := strconv.ParseBool(text); err == nil {
			return b
		}
	case "float32", "float64":
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			return n
		}
	case "int", "int32", "int64":
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	}
	return text
}

// ofConfig tells the flags that are about the file itself, and those of the command line alone.
func ofConfig(f *pflag.Flag) bool {
	return f.Name == configFlag || f.Name == printFlag || f.Name == "help" || f.Name == "version"
}
