//go:build slow

package rabbitmq_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/postbus-io/postbus/eventbus/rabbitmq"
)

// The broker of the tests, and its HTTP API.
var (
	brokerURL     = os.Getenv("POSTBUS_TEST_RABBITMQ")
	managementURL = os.Getenv("POSTBUS_TEST_RABBITMQ_MANAGEMENT")
	strict        = os.Getenv("POSTBUS_TEST_STRICT") == "1"
	host          = "test-" + strings.ToLower(watermill.NewULID())
)

// needBroker returns the URL of the tests' virtual host.
func needBroker(t testing.TB) rabbitmq.URL {
	t.Helper()
	if brokerURL == "" || managementURL == "" {
		const text = "POSTBUS_TEST_RABBITMQ or POSTBUS_TEST_RABBITMQ_MANAGEMENT is not set: run dev/services up rabbitmq, then eval \"$(dev/services env rabbitmq)\""
		if strict {
			t.Fatal(text)
		}
		t.Skip("NOT TESTED: " + text)
	}
	return withHost(brokerURL, host)
}

func withHost(text, host string) rabbitmq.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic("POSTBUS_TEST_RABBITMQ does not parse")
	}
	u.Path = "/" + host
	return rabbitmq.URL(u.String())
}

func createHost() (drop func() error, err error) {
	if brokerURL == "" || managementURL == "" {
		return func() error { return nil }, nil
	}
	drop = func() error { return manage(http.MethodDelete, "vhosts/"+host, nil, nil) }
	u, err := url.Parse(brokerURL)
	if err != nil {
		return drop, fmt.Errorf("POSTBUS_TEST_RABBITMQ does not parse")
	}
	if err := manage(http.MethodPut, "vhosts/"+host, nil, nil); err != nil {
		return drop, err
	}
	all := map[string]string{"configure": ".*", "write": ".*", "read": ".*"}
	return drop, manage(http.MethodPut, "permissions/"+host+"/"+u.User.Username(), all, nil)
}

// manage asks the HTTP API. Arguments and answer are JSON, or nil.
func manage(method, path string, arguments, answer any) error {
	body, err := json.Marshal(arguments)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(method, managementURL+"/api/"+path, bytes.NewReader(body)) //nolint:noctx // the client has a timeout
	if err != nil {
		return err
	}
	client := http.Client{Timeout: deadline, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal(text, answer)
}
