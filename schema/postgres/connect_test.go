package postgres_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// assertClear: one line, wrapping ErrConnect, without the password.
func assertClear(t *testing.T, err error, parts ...string) {
	t.Helper()
	require.ErrorIs(t, err, postgres.ErrConnect)
	text := err.Error()
	assert.NotContains(t, text, "\n")
	assert.Less(t, len(text), 300, text)
	for _, secret := range []string{"hunter", "p%40ss"} {
		assert.NotContains(t, text, secret)
	}
	for _, part := range parts {
		assert.Contains(t, text, part)
	}
}

func TestConnect_WrongURLs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, part string }{
		{"", "not of the form"},
		{"postgres://", "not of the form"},
		{"mysql://user:hunter2@host/db", "not of the form"},
		{"host=127.0.0.1 password=hunter2", "not of the form"},
		{"postgres://user:hunter2@127.0.0.1:port/db", "not of the form"},
		{"postgres://user:hunter2%zz@127.0.0.1/db", "not of the form"},
		{"postgres://user:hunter2@127.0.0.1:1/db?sslmode=perhaps", "127.0.0.1:1"},
		{"postgres://user:hunter2@127.0.0.1:1/db?connect_timeout=hunter2", "127.0.0.1:1"},
		{"postgres://user:hunter2@127.0.0.1:1/db?sslmode=disable", "127.0.0.1:1/db as \"user\": connect: connection refused"},
		{"postgres://us%40er:p%40ssw\x7frd@127.0.0.1/db", "not of the form"},
		{"postgres://user:p%40ss@no-such-host.invalid/db?sslmode=disable", "no-such-host.invalid"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := postgres.Connect(ctx, c.url)
		cancel()
		assertClear(t, err, c.part)
	}
}

// withUser returns the server's URL with another user, password and database.
func withUser(t *testing.T, rawURL, user, password, database string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	u.User = url.UserPassword(user, password)
	if database != "" {
		u.Path = "/" + database
	}
	return u.String()
}

func TestConnect_WhatTheServerRefuses(t *testing.T) {
	t.Parallel()
	server := schematest.PostgresURL(t)
	u, err := url.Parse(server)
	require.NoError(t, err)
	password, _ := u.User.Password()
	for name, target := range map[string]string{
		"wrong password":      withUser(t, server, u.User.Username(), "hunter2/p%40ss", ""),
		"no such user":        withUser(t, server, "hunted", "hunter2", ""),
		"no such database":    withUser(t, server, u.User.Username(), password, "no_such_database"),
		"setting it lacks":    server + "&no_such_setting=hunter2",
		"search path too odd": server + "&statement_timeout=hunter2",
	} {
		_, err := postgres.Connect(t.Context(), target)
		if name == "wrong password" && err == nil {
			t.Log("this server trusts everybody")
			continue
		}
		require.Error(t, err, name)
		if !strings.Contains(name, "setting") && !strings.Contains(name, "odd") { // those quote a value, which is no secret
			assertClear(t, err, u.Host)
			assert.NotContains(t, err.Error(), password+"@")
		}
	}
}

// A server that takes the connection and says nothing is given up after
// connect_timeout.
func TestConnect_SilentServer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, listener.Close()) })
	accepted := async(func() net.Conn {
		conn, err := listener.Accept()
		assert.NoError(t, err)
		return conn
	})
	began := time.Now()
	result := async(func() error {
		_, err := postgres.Connect(t.Context(), fmt.Sprintf("postgres://user:hunter2@%s/db?sslmode=disable", listener.Addr()))
		return err
	})
	assertClear(t, await(t, "connect", result), listener.Addr().String(), "timeout")
	assert.InDelta(t, 10, time.Since(began).Seconds(), 5)
	assert.NoError(t, await(t, "the connection", accepted).Close())
}

func TestConnect_OpensWhatWorks(t *testing.T) {
	t.Parallel()
	server := schematest.PostgresURL(t)
	for _, target := range []string{server, server + "&binary_parameters=no", strings.Replace(server, "postgres://", "postgresql://", 1)} {
		db, err := postgres.Connect(t.Context(), target)
		require.NoError(t, err)
		require.NoError(t, postgres.Migrate(t.Context(), db, schema.Tables{}))
		wholeJob(t.Context(), t, db, open(t, db, postgres.Config{}))
		require.NoError(t, db.Close())
	}
}
