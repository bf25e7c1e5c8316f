package eventbus_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/postbus-io/postbus/eventbus"
)

func TestSecret_IsNeverPrinted(t *testing.T) {
	t.Parallel()
	type settings struct {
		User     string
		Password eventbus.Secret
	}
	s := settings{"app", "S3cr3t!"}
	var logged bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&logged, nil), slog.NewJSONHandler(&logged, nil)} {
		slog.New(handler).Info("open", "password", s.Password, "settings", s, "pointer", &s.Password)
	}
	asJSON, err := json.Marshal(s)
	require.NoError(t, err)
	asYAML, err := yaml.Marshal(s)
	require.NoError(t, err)
	printed := map[string]string{"log": logged.String(), "json": string(asJSON), "yaml": string(asYAML), "error": fmt.Errorf("dial %s: %w", s.Password, errors.ErrUnsupported).Error()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10s", "%.3s", "%t", "%U"} {
		printed[verb] = fmt.Sprintf(verb, s.Password) + fmt.Sprintf(verb, s) + fmt.Sprintf(verb, &s) + fmt.Sprintf(verb, []eventbus.Secret{s.Password})
	}
	for how, text := range printed {
		require.NotContains(t, text, "S3c", how)
		require.NotContains(t, strings.ToLower(text), fmt.Sprintf("%x", "S3c"), how)
		require.Contains(t, text, "xxxxx", how)
	}
	require.Equal(t, "S3cr3t!", string(s.Password))
}

func TestSecret_EmptyIsSeenToBeEmpty(t *testing.T) {
	t.Parallel()
	require.Equal(t, `||""|""`, fmt.Sprintf("%v|%s|%q|%#v", eventbus.Secret(""), eventbus.Secret(""), eventbus.Secret(""), eventbus.Secret("")))
}

func TestRedactURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		// plain
		"postgres://app:S3cr3t!@db:5432/app?sslmode=disable": "postgres://app:xxxxx@db:5432/app?sslmode=disable",
		"amqps://app:S3cr3t%21@mq/%2f":                       "amqps://app:xxxxx@mq/%2f",
		"redis://:S3cr3t!@cache":                             "redis://:xxxxx@cache",
		"postgresql+ssl://a.b%40c:S3cr3t!@[::1]:5432/app":    "postgresql+ssl://a.b%40c:xxxxx@[::1]:5432/app",
		"postgres://app:S3cr3t!@a:1,b:2/app":                 "postgres://app:xxxxx@a:1,b:2/app",
		// unescaped: such URLs do not parse
		"postgres://app:S3@cr3t!@db/app":        "postgres://app:xxxxx@db/app",
		"postgres://app:S3/cr#3?t!@db/app":      "postgres://app:xxxxx@db/app",
		"postgres://app:S3:cr3t!@db:port/app":   "postgres://app:xxxxx@db:port/app",
		"postgres://app:S3cr3t%zz@db/app":       "postgres://app:xxxxx@db/app",
		"postgres://app:S3 cr3t!@db/app":        "postgres://app:xxxxx@db/app",
		"amqp://app:S3://cr3t!@mq":              "amqp://app:xxxxx@mq",
		"amqp://app:S3@x://cr3t!@mq":            "amqp://app:xxxxx@mq",
		"://app:S3cr3t!@mq":                     "://app:xxxxx@mq",
		"postgres://app:12345/S3cr3t!@db":       "postgres://app:xxxxx@db",
		"postgres://app:S3\"cr'3t`!@db":         "postgres://app:xxxxx@db",
		"postgres://app:S3cr3t!@db\nmail x@y.z": "postgres://app:xxxxx@db\nmail x@y.z",
		// inside a text
		`parse "amqp://app:S3cr3t!@mq:port/": invalid port`:          `parse "amqp://app:xxxxx@mq:port/": invalid port`,
		"amqp://a:S3cr3t!@m1,amqp://b:S3cr3t!@m2":                    "amqp://a:xxxxx@m1,amqp://b:xxxxx@m2",
		"from amqp://a:S3cr3t!@m1 to postgres://b:S3cr3t!@db, twice": "from amqp://a:xxxxx@m1 to postgres://b:xxxxx@db, twice",
		`["amqp://a:S3cr3t!@m1","amqp://m2"]`:                        `["amqp://a:xxxxx@m1","amqp://m2"]`,
		// query strings and key=value DSNs
		"postgres:///app?user=a&password=S3cr3t!&sslmode=disable": "postgres:///app?user=a&password=xxxxx&sslmode=disable",
		"postgres:///app?password=S3cr3t%26&sslpassword=S3cr3t!":  "postgres:///app?password=xxxxx&sslpassword=xxxxx",
		"host=db user=a password=S3cr3t! dbname=app":              "host=db user=a password=xxxxx dbname=app",
		"host=db password=S3&cr;3t! dbname=app":                   "host=db password=xxxxx dbname=app",
		`host=db password='S3 cr\'3t!' dbname=app`:                "host=db password=xxxxx dbname=app",
		`host=db password=S3\ cr3t! dbname=app`:                   "host=db password=xxxxx dbname=app",
		`host=db password = S3cr3t! dbname=app`:                   "host=db password = xxxxx dbname=app",
		`host=db password='S3 cr3t!`:                              "host=db password=xxxxx",
		`host=db PASSWORD=S3cr3t!`:                                "host=db PASSWORD=xxxxx",
		"Host=db;Password=S3cr3t!;Database=app":                   "Host=db;Password=xxxxx;Database=app",
		"sasl.password=S3cr3t! acks=all":                          "sasl.password=xxxxx acks=all",
		`dsn "host=db password=\"S3 cr3t!\" x=y"`:                 `dsn "host=db password=xxxxx`,
		`dsn "password='S3\\' cr3t!' x=y"`:                        `dsn "password=xxxxx x=y"`,
		"https://x/y?access_token=S3cr3t!#z":                      "https://x/y?access_token=xxxxx#z",
	} {
		require.Equal(t, want, eventbus.RedactURL(text))
		require.Equal(t, want, eventbus.RedactURL(want), "a second time")
	}
}

// TestRedactURL_LeavesTheRest has texts without a password.
func TestRedactURL_LeavesTheRest(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "://", "@", "a:b@c", "postgres://db/app", "postgres://app@db:5432/app", "amqp://localhost:5672/: connection refused",
		"dial amqp://localhost:5672: refused, ask admin@example.com", `"amqp://localhost:5672": ask admin@example.com`,
		"see http://localhost: mail admin@example.com", "postgres://[::1]:5432/db failed for bob@example.com",
		"postgres://a:1,b:2/app of bob@example.com", "password authentication failed for user \"app\"", "password=", "file:/tmp/a.db?mode=rwc",
	} {
		require.Equal(t, text, eventbus.RedactURL(text))
	}
}

// TestRedactURL_HidesAnyPassword draws passwords of printable characters and
// looks for them, as they are and percent-encoded.
func TestRedactURL_HidesAnyPassword(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 2_000 {
		raw := make([]byte, 6+random.IntN(12))
		for i := range raw {
			raw[i] = byte('!' + random.IntN('~'-'!'+1))
		}
		password := string(raw)
		quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password)
		for _, text := range []string{
			"amqp://app:" + password + "@mq:5672/",
			"dial amqp://app:" + url.QueryEscape(password) + "@mq:5672/: refused",
			(&url.URL{Scheme: "postgres", User: url.UserPassword("app", password), Host: "db"}).String(),
			"postgres:///app?password=" + url.QueryEscape(password) + "&sslmode=disable",
			"host=db password='" + quoted + "' sslmode=disable",
		} {
			out := eventbus.RedactURL(text)
			for _, secret := range []string{password, url.QueryEscape(password), url.PathEscape(password), quoted} {
				require.NotContains(t, out, secret, text)
			}
			require.Contains(t, out, "xxxxx", text)
		}
	}
}

func FuzzRedactURL(f *testing.F) {
	for _, seed := range []string{"", "a", "p@ss/w#rd", "a b", "'", `\`, "://", "a@b://c", "xxxxx", "12345"} {
		f.Add("dial", seed)
	}
	f.Fuzz(func(t *testing.T, before, password string) {
		eventbus.RedactURL(password)
		if strings.ContainsAny(before+password, ":@=/ \t\r\n\v\f") || len(password) < 4 || strings.Contains(before+"xxxxx@host/", password) {
			return
		}
		out := eventbus.RedactURL(before + " amqp://app:" + password + "@host/")
		require.NotContains(t, out, password)
		require.Equal(t, out, eventbus.RedactURL(out))
	})
}
