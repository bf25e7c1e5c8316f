# shellcheck shell=bash
#
# PgBouncer in front of the PostgreSQL of dev/services, in transaction mode: two transactions of one client may meet two
# backends. User, password and databases are those of PostgreSQL.
#
# It refuses connections that ask for a search_path, or for anything else that it would lose between two transactions:
# through it, name the schema, or take a database of your own.

readonly PGBOUNCER_DEFAULT_PORT=56431 PGBOUNCER_STOP_SECONDS=10 PGBOUNCER_PROCESS='pgbouncer.*pgbouncer\.ini'

pgbouncer_order() { echo 20; }

pgbouncer_needs() { echo postgres; }

pgbouncer_prepare() {
	local behind
	check_port pgbouncer POSTBUS_PGBOUNCER_PORT "$(pgbouncer_running_port)"
	if pgbouncer_running; then
		behind=$(pgbouncer_setting postgres)
		[[ $behind == "$(postgres_port)" ]] ||
			die pgbouncer "already up in front of port $behind, but PostgreSQL is on $(postgres_port):" \
				"run dev/services down pgbouncer first"
	fi
	pgbouncer_bin >/dev/null && return
	may_install || die pgbouncer "PgBouncer is not installed: apt-get install pgbouncer"
	{ apt_install_idle pgbouncer pgbouncer.service pgbouncer && pgbouncer_bin >/dev/null; } ||
		die pgbouncer "could not install PgBouncer: apt-get install pgbouncer"
	unset PG_DIR PGBOUNCER_DIR # the package may bring a user
}

pgbouncer_running() { pgbouncer_pid >/dev/null; }

pgbouncer_start() {
	local port
	pgbouncer_locate
	port=$(pgbouncer_port)
	make_place pgbouncer "$PG_USER" "$PGBOUNCER_DIR"
	end_workers immediate 0 "$PGBOUNCER_DIR" "$PGBOUNCER_PROCESS" || die pgbouncer "processes of an earlier run do not end"
	need_port pgbouncer POSTBUS_PGBOUNCER_PORT "$port"
	pgbouncer_configure "$port" "$(postgres_port)" || return
	launch "$PG_USER" "$PGBOUNCER_DIR" "$(pgbouncer_bin)" pgbouncer.ini
}

pgbouncer_ready() { postgres_answers "$(pgbouncer_setting listen_port)"; }

pgbouncer_stop() {
	pgbouncer_locate
	end_workers "$1" "$PGBOUNCER_STOP_SECONDS" "$PGBOUNCER_DIR" "$PGBOUNCER_PROCESS"
}

pgbouncer_purge() {
	pgbouncer_locate
	purge_place pgbouncer "$PGBOUNCER_DIR"
}

pgbouncer_status() {
	echo "127.0.0.1:$(pgbouncer_running_port), pid $(pgbouncer_pid), $(pgbouncer_log)"
}

pgbouncer_log() {
	pgbouncer_locate
	echo "$PGBOUNCER_DIR/log"
}

pgbouncer_env() {
	echo "export POSTBUS_TEST_PGBOUNCER='postgres://postbus:postbus@127.0.0.1:$(pgbouncer_port)/postbus?sslmode=disable'"
}

pgbouncer_usage() { echo "POSTBUS_PGBOUNCER_PORT ($PGBOUNCER_DEFAULT_PORT)"; }

pgbouncer_pin() { POSTBUS_PGBOUNCER_PORT=$(pgbouncer_port); }

# pgbouncer_exec: psql on the console (SHOW POOLS, PAUSE, RESUME), or with -d on a database behind.
pgbouncer_exec() { postgres_client "$(pgbouncer_running_port)" pgbouncer "$@"; }

# ---- inside ----

# pgbouncer_locate sets PGBOUNCER_DIR, its folder. PgBouncer refuses root: it runs as PG_USER, as PostgreSQL does.
pgbouncer_locate() {
	postgres_locate
	[[ -z ${PGBOUNCER_DIR-} ]] || return 0
	place pgbouncer "$PG_USER"
	PGBOUNCER_DIR=$PLACE
}

pgbouncer_bin() { PATH=$PATH:/usr/sbin command -v pgbouncer; }

pgbouncer_pid() {
	pgbouncer_locate
	launched "$PGBOUNCER_DIR" "$PGBOUNCER_PROCESS"
}

# pgbouncer_setting NAME: in the file that it was started with.
pgbouncer_setting() {
	pgbouncer_locate
	case $1 in
	postgres) sed -nE 's/^\* = .* port=([0-9]+).*/\1/p' "$PGBOUNCER_DIR/pgbouncer.ini" ;;
	*) sed -nE "s/^$1 = //p" "$PGBOUNCER_DIR/pgbouncer.ini" ;;
	esac
}

pgbouncer_running_port() { pgbouncer_running && pgbouncer_setting listen_port; }

pgbouncer_port() {
	if [[ -n ${POSTBUS_PGBOUNCER_PORT-} ]]; then
		echo "$POSTBUS_PGBOUNCER_PORT"
	else
		pgbouncer_running_port || echo "$PGBOUNCER_DEFAULT_PORT"
	fi
}

# pgbouncer_configure PORT POSTGRES-PORT. Left to itself it would give a lone client the same backend again and again:
# round robin over two at least makes it swap. lib/pq asks for extra_float_digits, which changes nothing. A search_path
# must not be ignored, it would be lost in silence.
pgbouncer_configure() {
	postgres_write "$PGBOUNCER_DIR/userlist.txt" <<<'"postbus" "postbus"' &&
		postgres_write "$PGBOUNCER_DIR/pgbouncer.ini" <<END
[databases]
* = host=127.0.0.1 port=$2

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $1
unix_socket_dir =
auth_type = scram-sha-256
auth_file = userlist.txt
admin_users = postbus
pool_mode = transaction
default_pool_size = 5
min_pool_size = 2
server_round_robin = 1
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
server_login_retry = 1
server_idle_timeout = 30
log_connections = 0
log_disconnections = 0
log_stats = 0
END
}
