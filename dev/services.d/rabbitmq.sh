# shellcheck shell=bash
#
# RabbitMQ for the tests: one node of its own, with its own port mapper (epmd), cookie and data, which never meets another
# RabbitMQ of the machine. User and password are "postbus", an administrator of the virtual host "/". It listens on
# 127.0.0.1, its HTTP API (management) two ports further.

readonly RABBIT_DEFAULT_PORT=55671 RABBIT_STOP_SECONDS=60 RABBIT_DIR=$STATE/rabbitmq
readonly RABBIT_PROCESS='rabbitmq-server|-s rabbit boot'
readonly RABBIT_KIN="$RABBIT_PROCESS|rabbit_disk_monitor|erl_child_setup|inet_gethost|epmd"

rabbitmq_order() { echo 40; }

rabbitmq_prepare() {
	local units='rabbitmq-server.service epmd.service epmd.socket'
	check_port rabbitmq POSTBUS_RABBITMQ_PORT "$(rabbitmq_running_port amqp)"
	check_port rabbitmq POSTBUS_RABBITMQ_MANAGEMENT_PORT "$(rabbitmq_running_port management)"
	# Its disk monitor hands the path to a shell.
	[[ $RABBIT_DIR != *\'* ]] || die rabbitmq "cannot work in $RABBIT_DIR, because of the quote: set POSTBUS_SERVICES_DIR"
	rabbitmq_bin >/dev/null && return
	[[ -z ${POSTBUS_RABBITMQ_BIN-} ]] ||
		die rabbitmq "POSTBUS_RABBITMQ_BIN=$POSTBUS_RABBITMQ_BIN: no rabbitmq-server and rabbitmq-env there"
	may_install ||
		die rabbitmq "RabbitMQ is not installed: apt-get install rabbitmq-server, or set POSTBUS_RABBITMQ_BIN"
	{ apt_install_idle rabbitmq "$units" rabbitmq-server && rabbitmq_bin >/dev/null; } ||
		die rabbitmq "could not install RabbitMQ: apt-get install rabbitmq-server, or set POSTBUS_RABBITMQ_BIN"
}

rabbitmq_running() { rabbitmq_pid >/dev/null; }

rabbitmq_start() {
	local bin port management dist epmd
	bin=$(rabbitmq_bin)
	port=$(rabbitmq_port amqp)
	management=$(rabbitmq_port management)
	mkdir -p "$RABBIT_DIR/epmd"
	chmod 700 "$RABBIT_DIR"
	rabbitmq_end immediate || die rabbitmq "processes of an earlier run do not end"
	need_port rabbitmq POSTBUS_RABBITMQ_PORT "$port"
	if [[ -n ${POSTBUS_RABBITMQ_MANAGEMENT_PORT-} ]]; then
		need_port rabbitmq POSTBUS_RABBITMQ_MANAGEMENT_PORT "$management"
	else
		management=$(next_port "$management") || return
	fi
	dist=$(next_port $((management + 2))) || return
	epmd=$(next_port $((dist + 2))) || return
	rabbitmq_configure "$port" "$management" "$dist" "$epmd"
	rabbitmq_environment
	launch "$(id -u)" "$RABBIT_DIR/epmd" "${RABBIT_ENV[@]}" epmd &&
		launch "$(id -u)" "$RABBIT_DIR" "${RABBIT_ENV[@]}" "$bin/rabbitmq-server"
}

rabbitmq_ready() {
	local port
	port=$(rabbitmq_running_port amqp) && (rabbitmq_opens "$port") 2>/dev/null
}

rabbitmq_stop() { rabbitmq_end "$1"; }

rabbitmq_purge() { rm -rf -- "$RABBIT_DIR"; }

rabbitmq_status() {
	echo "127.0.0.1:$(rabbitmq_running_port amqp), management $(rabbitmq_running_port management)," \
		"pid $(rabbitmq_pid), $(rabbitmq_log)"
}

rabbitmq_log() { echo "$RABBIT_DIR/log"; }

rabbitmq_env() {
	echo "export POSTBUS_TEST_RABBITMQ='amqp://postbus:postbus@127.0.0.1:$(rabbitmq_port amqp)/'"
	echo "export POSTBUS_TEST_RABBITMQ_MANAGEMENT='http://postbus:postbus@127.0.0.1:$(rabbitmq_port management)'"
}

rabbitmq_usage() {
	echo "POSTBUS_RABBITMQ_PORT ($RABBIT_DEFAULT_PORT), POSTBUS_RABBITMQ_MANAGEMENT_PORT (the next free one)"
}

rabbitmq_pin() {
	POSTBUS_RABBITMQ_PORT=$(rabbitmq_port amqp)
	POSTBUS_RABBITMQ_MANAGEMENT_PORT=$(rabbitmq_port management)
}

# rabbitmq_exec: rabbitmqctl, rabbitmq-diagnostics, rabbitmq-queues and their sisters.
rabbitmq_exec() {
	local bin
	bin=$(rabbitmq_bin) || die rabbitmq "rabbitmqctl is gone: install RabbitMQ again"
	[[ $1 == rabbitmq* && -x $bin/$1 ]] || die rabbitmq "exec: no $1 in $bin"
	rabbitmq_environment
	"${RABBIT_ENV[@]}" "$bin/$1" "${@:2}"
}

# ---- inside ----

# rabbitmq_bin: the folder of the server's own scripts: what POSTBUS_RABBITMQ_BIN says, Debian's, or what is in PATH, as in
# the generic package. What Debian has in PATH insists on its own user and folders.
rabbitmq_bin() {
	local dir
	while read -r dir; do
		if [[ -x $dir/rabbitmq-server && -x $dir/rabbitmqctl && -f $dir/rabbitmq-env ]]; then
			echo "$dir"
			return
		fi
	done < <(
		if [[ -n ${POSTBUS_RABBITMQ_BIN-} ]]; then
			echo "$POSTBUS_RABBITMQ_BIN"
		else
			echo /usr/lib/rabbitmq/bin
			dirname "$(readlink -f "$(command -v rabbitmq-server || echo /)")"
		fi
	)
	return 1
}

rabbitmq_pid() { launched "$RABBIT_DIR" "$RABBIT_PROCESS"; }

# rabbitmq_setting NAME: amqp, management, dist or epmd: the ports that it was started with.
rabbitmq_setting() { sed -n "s/^$1=//p" "$RABBIT_DIR/ports"; }

rabbitmq_running_port() { rabbitmq_running && rabbitmq_setting "$1"; }

rabbitmq_port() {
	case $1 in
	amqp) [[ -z ${POSTBUS_RABBITMQ_PORT-} ]] || { echo "$POSTBUS_RABBITMQ_PORT" && return; } ;;
	management) [[ -z ${POSTBUS_RABBITMQ_MANAGEMENT_PORT-} ]] || { echo "$POSTBUS_RABBITMQ_MANAGEMENT_PORT" && return; } ;;
	esac
	rabbitmq_running_port "$1" && return
	case $1 in
	amqp) echo "$RABBIT_DEFAULT_PORT" ;;
	management) echo $(($(rabbitmq_port amqp) + 2)) ;;
	esac
}

# rabbitmq_end MODE: the node, its children and its port mapper.
rabbitmq_end() {
	end_workers "$1" "$RABBIT_STOP_SECONDS" "$RABBIT_DIR" "$RABBIT_KIN" &&
		end_workers immediate 0 "$RABBIT_DIR/epmd" "$RABBIT_KIN"
}

# rabbitmq_configure AMQP MANAGEMENT DIST EPMD. The definitions are imported at each start: a first start that was
# interrupted leaves no node without a user.
rabbitmq_configure() {
	printf '%s\n' "amqp=$1" "management=$2" "dist=$3" "epmd=$4" >"$RABBIT_DIR/ports"
	echo '[rabbitmq_management].' >"$RABBIT_DIR/enabled_plugins"
	cat >"$RABBIT_DIR/definitions.json" <<END
{
  "users": [{"name": "postbus", "password": "postbus", "tags": "administrator"}],
  "vhosts": [{"name": "/"}],
  "permissions": [{"user": "postbus", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}]
}
END
	cat >"$RABBIT_DIR/rabbitmq.conf" <<END
listeners.tcp.local = 127.0.0.1:$1
management.tcp.ip = 127.0.0.1
management.tcp.port = $2
load_definitions = definitions.json
log.console = true
log.console.level = info
log.file = false
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
raft.wal_max_size_bytes = 67108864
END
}

# rabbitmq_environment: RABBIT_ENV, before a command. RUNNING_UNDER_SYSTEMD makes the server's script become the server.
rabbitmq_environment() {
	RABBIT_ENV=(env -u NOTIFY_SOCKET -u XDG_CONFIG_HOME HOME="$RABBIT_DIR" LC_ALL=C.UTF-8
		ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT="$(rabbitmq_setting epmd)" RABBITMQ_DIST_PORT="$(rabbitmq_setting dist)"
		RABBITMQ_NODENAME=postbus@localhost RABBITMQ_CONF_ENV_FILE=/dev/null
		RABBITMQ_CONFIG_FILE="$RABBIT_DIR/rabbitmq.conf" RABBITMQ_ADVANCED_CONFIG_FILE="$RABBIT_DIR/advanced.config"
		RABBITMQ_ENABLED_PLUGINS_FILE="$RABBIT_DIR/enabled_plugins" RABBITMQ_MNESIA_BASE="$RABBIT_DIR/data"
		RABBITMQ_LOG_BASE="$RABBIT_DIR" RABBITMQ_LOGS=-
		RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}'
		RABBITMQ_CTL_ERL_ARGS='-dist_listen false' RUNNING_UNDER_SYSTEMD=true)
}

# rabbitmq_opens PORT: does the server open the virtual host for postbus? All that a client says is sent at once: protocol
# header, start-ok (PLAIN), tune-ok, open of "/", close. An answer ends with 0xce; read drops its zeros.
rabbitmq_opens() {
	local answer
	exec 3<>"/dev/tcp/127.0.0.1/$1" || return
	{
		printf 'AMQP\0\0\x09\x01'
		printf '\x01\0\0\0\0\0\x28\0\x0a\0\x0b\0\0\0\0\x05PLAIN\0\0\0\x10\0postbus\0postbus\x05en_US\xce'
		printf '\x01\0\0\0\0\0\x0c\0\x0a\0\x1f\x07\xff\0\x02\0\0\0\0\xce'
		printf '\x01\0\0\0\0\0\x08\0\x0a\0\x28\x01/\0\0\xce'
		printf '\x01\0\0\0\0\0\x0b\0\x0a\0\x32\0\xc8\0\0\0\0\0\xce'
	} >&3
	while IFS= read -r -t 3 -d $'\xce' answer <&3; do
		[[ $answer != $'\x01\x05\x0a\x29' ]] || return 0 # open-ok
	done
	return 1
}
