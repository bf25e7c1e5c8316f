package eventbus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	yamlnode "go.yaml.in/yaml/v3"
)

// EnvPrefix starts the name of every environment variable that [LoadConfig]
// reads.
const EnvPrefix = "POSTBUS_"

// reservedEnv are the prefixes of variables that are not the configuration's:
// they tell tests and scripts where services are.
var reservedEnv = []string{EnvPrefix + "TEST_", EnvPrefix + "PG_", EnvPrefix + "SERVICES_"}

// LoadConfig returns the defaults, with the YAML file at path over them, and
// the environment over both; an empty path is no file. It is strict: whatever
// it does not know or cannot take, in the file, in a variable that starts with
// POSTBUS_, or among the values, is an error, all of them at once, each a line
// that begins with the field's path. The error wraps [ErrInvalidConfig].
func LoadConfig(path string) (Config, error) { return loadConfig(path, os.Environ) }

func loadConfig(path string, environ func() []string) (Config, error) {
	cfg, f := DefaultConfig(), &faults{}
	if path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return Config{}, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
		}
		readYAML(path, data, &cfg, f)
	}
	readEnv(environ, &cfg, f)
	cfg.check(f)
	if err := f.err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// readYAML writes what data says over target, a pointer to a struct.
func readYAML(path string, data []byte, target any, f *faults) {
	if err := checkDocument(data); err != nil {
		f.add(path, "%v", err)
		return
	}
	k := koanf.New(".")
	if err := k.Load(rawbytes.Provider(data), yaml.Parser()); err != nil {
		f.add(path, "%v", oneLine(err))
		return
	}
	assignSection("", k.Raw(), reflect.ValueOf(target).Elem(), f)
}

// checkDocument refuses what the parser would pass over or describe by its
// content: a second document, and one that is no mapping.
func checkDocument(data []byte) error {
	decoder := yamlnode.NewDecoder(bytes.NewReader(data))
	var first, second yamlnode.Node
	switch err := decoder.Decode(&first); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return oneLine(err)
	}
	if root := first.Content[0]; root.Kind != yamlnode.MappingNode && root.Tag != "!!null" {
		return errors.New("holds a list or a single value; write sections such as relay:")
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return errors.New("holds more than one YAML document; keep one")
	}
	return nil
}

func oneLine(err error) error {
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// readEnv writes what the environment says over target, a pointer to a struct.
func readEnv(environ func() []string, target any, f *faults) {
	into := reflect.ValueOf(target).Elem()
	known := map[string]field{}
	for _, fd := range fieldsOf(into.Type()) {
		known[fd.env()] = fd
	}
	fromEnv := &faults{}
	k := koanf.New(".")
	transform := func(name, text string) (string, any) {
		fd, ok := known[name]
		if !ok {
			f.addUnknownEnv(name, known)
			return "", nil
		}
		return fd.path, typed(text, fd.kind)
	}
	provider := env.Provider(".", env.Opt{Prefix: EnvPrefix, TransformFunc: transform, EnvironFunc: environ})
	if err := k.Load(provider, nil); err != nil {
		f.add("environment", "%v", oneLine(err))
		return
	}
	assignSection("", k.Raw(), into, fromEnv)
	for _, fault := range fromEnv.list {
		f.add(fault.Field, "%s (%s)", fault.Reason, envName(fault.Field))
	}
}

func (f *faults) addUnknownEnv(name string, known map[string]field) {
	for _, prefix := range reservedEnv {
		if strings.HasPrefix(name, prefix) {
			return
		}
	}
	section, _, _ := strings.Cut(strings.TrimPrefix(name, EnvPrefix), "_")
	var near []string
	for candidate := range known {
		if strings.HasPrefix(candidate, EnvPrefix+section+"_") {
			near = append(near, candidate)
		}
	}
	slices.Sort(near)
	if len(near) == 0 {
		f.add(name, "unknown variable; those of the configuration are named after its fields, as POSTBUS_RELAY_BATCH is after relay.batch")
		return
	}
	f.add(name, "unknown variable; there are %s", strings.Join(near, ", "))
}

// typed returns text as YAML would have read it for a field of kind t, and as
// it is when it cannot be.
func typed(text string, t reflect.Type) any {
	switch {
	case t.Kind() == reflect.Bool:
		if b, err := strconv.ParseBool(text); err == nil {
			return b
		}
	case t.Kind() == reflect.Int:
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
	}
	return text
}

// assignSection writes the values of a section into a struct, each field's only
// if it is exactly what the field takes.
func assignSection(path string, values map[string]any, into reflect.Value, f *faults) {
	var names []string
	for i := range into.NumField() {
		name := into.Type().Field(i).Tag.Get("yaml")
		names = append(names, name)
		if value, ok := values[name]; ok {
			assignField(join(path, name), value, into.Field(i), f)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(names, name) {
			f.add(join(path, name), "unknown field; there are %s", join(path, strings.Join(names, ", "+join(path, ""))))
		}
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func assignField(path string, value any, into reflect.Value, f *faults) {
	if into.Kind() == reflect.Struct {
		section, ok := value.(map[string]any)
		if !ok && value != nil {
			f.add(path, "%s is not a section; write its fields indented below it", shown(value, into.Type()))
			return
		}
		assignSection(path, section, into, f)
		return
	}
	if value == nil {
		f.add(path, "has no value; leave it out for the default")
		return
	}
	if want := assignScalar(value, into); want != "" {
		f.add(path, "%s is not %s", shown(value, into.Type()), want)
	}
}

var durationType = reflect.TypeFor[time.Duration]()

// assignScalar returns what the field takes when value is not that.
func assignScalar(value any, into reflect.Value) (want string) {
	switch {
	case into.Type() == durationType:
		text, _ := value.(string)
		d, err := time.ParseDuration(text)
		if err != nil {
			return "a duration with a unit, such as 250ms, 10s or 5m"
		}
		into.SetInt(int64(d))
	case into.Kind() == reflect.Int:
		n, ok := value.(int)
		if !ok {
			return "a whole number"
		}
		into.SetInt(int64(n))
	case into.Kind() == reflect.Bool:
		b, ok := value.(bool)
		if !ok {
			return "true or false"
		}
		into.SetBool(b)
	default:
		text, ok := value.(string)
		if !ok {
			return "text; put it in quotes"
		}
		into.SetString(text)
	}
	return ""
}

// shown returns value for a message: bounded, and masked for a secret's field.
func shown(value any, t reflect.Type) string {
	switch v := value.(type) {
	case map[string]any:
		return "a section"
	case []any:
		return "a list"
	case string:
		if t == reflect.TypeFor[Secret]() {
			return Secret(v).String()
		}
		return fmt.Sprintf("%.64q", RedactURL(v)) // before it is cut, while the @ is there
	}
	if t == reflect.TypeFor[Secret]() {
		return masked
	}
	return fmt.Sprintf("%.64v", value)
}

// A field is one value of a configuration, found by its tags.
type field struct {
	path  string
	index []int
	kind  reflect.Type
}

func (fd field) env() string { return envName(fd.path) }

func envName(path string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// fieldsOf returns the fields of a struct and of the structs in it, in their
// order.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		name, kind := t.Field(i).Tag.Get("yaml"), t.Field(i).Type
		if kind.Kind() != reflect.Struct {
			fields = append(fields, field{path: name, index: []int{i}, kind: kind})
			continue
		}
		for _, inner := range fieldsOf(kind) {
			inner.path, inner.index = name+"."+inner.path, append([]int{i}, inner.index...)
			fields = append(fields, inner)
		}
	}
	return fields
}
