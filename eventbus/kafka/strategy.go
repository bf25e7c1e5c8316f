package kafka

import "github.com/IBM/sarama"

// A strategy shares partitions out cooperatively: a rebalance interrupts only
// the partitions that move. Beyond that it says at once which ones are ours: the
// library tells a claim that its partition goes only behind what it has fetched
// already.
type strategy struct {
	sarama.BalanceStrategy
	assigned func(map[string][]int32)
}

var (
	_ sarama.RebalanceProtocolBalanceStrategy    = strategy{}
	_ sarama.SubscriptionUserDataBalanceStrategy = strategy{}
	_ sarama.OnAssignmentBalanceStrategy         = strategy{}
)

func newStrategy(assigned func(map[string][]int32)) strategy {
	return strategy{sarama.NewBalanceStrategyCooperativeSticky(), assigned}
}

// SupportedProtocols implements sarama.RebalanceProtocolBalanceStrategy.
func (s strategy) SupportedProtocols() []sarama.RebalanceProtocol {
	return s.BalanceStrategy.(sarama.RebalanceProtocolBalanceStrategy).SupportedProtocols()
}

// SubscriptionUserData implements sarama.SubscriptionUserDataBalanceStrategy.
func (s strategy) SubscriptionUserData(topics []string) ([]byte, error) {
	return s.BalanceStrategy.(sarama.SubscriptionUserDataBalanceStrategy).SubscriptionUserData(topics)
}

// OnAssignment implements sarama.OnAssignmentBalanceStrategy.
func (s strategy) OnAssignment(assignment *sarama.ConsumerGroupMemberAssignment, generation int32) {
	s.BalanceStrategy.(sarama.OnAssignmentBalanceStrategy).OnAssignment(assignment, generation)
	s.assigned(assignment.Topics)
}
