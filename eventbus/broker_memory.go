package eventbus

import (
	"log/slog"

	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/schema"
)

func openMemory(cfg BrokerConfig, log *slog.Logger) (schema.Broker, error) {
	m := cfg.Memory
	return memory.New(memory.Config{
		Logger:        log,
		RetainEntries: m.RetainEntries, RetainBytes: int64(m.RetainBytes),
		MaxBacklog: m.MaxBacklog, MaxBacklogBytes: int64(m.MaxBacklogBytes),
		NackBackoffMin: m.NackBackoff.Initial, NackBackoffMax: m.NackBackoff.Max,
	})
}
