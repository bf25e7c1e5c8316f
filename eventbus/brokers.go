package eventbus

import (
	"fmt"
	"log/slog"

	"github.com/postbus-io/postbus/schema"
)

// openBrokerFuncs has a line for each kind of broker.
var openBrokerFuncs = map[string]func(BrokerConfig, *slog.Logger) (schema.Broker, error){
	BrokerMemory: openMemory,
}

func openBroker(cfg BrokerConfig, log *slog.Logger) (schema.Broker, error) {
	open, ok := openBrokerFuncs[cfg.Kind]
	if !ok {
		return nil, fmt.Errorf("%w: broker.kind %q has no broker", ErrInvalidConfig, cfg.Kind)
	}
	broker, err := open(cfg, log)
	if err != nil {
		return nil, fmt.Errorf("broker %s: %w", cfg.Kind, err)
	}
	return broker, nil
}
