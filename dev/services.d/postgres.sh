# shellcheck shell=bash
#
# PostgreSQL for the tests: user, password and database are "postbus"; durable as in production (fsync and
# synchronous_commit on), logical decoding possible. It listens on 127.0.0.1 and on a socket in its own folder.

readonly PG_DEFAULT_PORT=54329 PG_STOP_SECONDS=60

postgres_order() { echo 10; }

postgres_prepare() {
	check_port postgres POSTBUS_PG_PORT "$(postgres_running_port)"
	postgres_bin >/dev/null && return
	[[ -z ${POSTBUS_PG_BIN-} ]] || die postgres "POSTBUS_PG_BIN=$POSTBUS_PG_BIN: no pg_ctl, initdb, postgres and psql there"
	may_install ||
		die postgres "PostgreSQL is not installed: apt-get install postgresql, or set POSTBUS_PG_BIN to the folder of pg_ctl"
	postgres_install ||
		die postgres "could not install PostgreSQL: apt-get install postgresql, or set POSTBUS_PG_BIN to the folder of pg_ctl"
	unset PG_DIR # the package brings a user
}

# postgres_install: while the package installs itself, Debian must not start a server of its own on port 5432.
postgres_install() {
	local dir=/etc/postgresql-common/createcluster.d code=0
	as_root mkdir -p "$dir" || return
	echo 'create_main_cluster = false' | as_root tee "$dir/postbus.conf" >/dev/null || return
	apt_install postgres postgresql || code=$?
	as_root rm -f "$dir/postbus.conf"
	((code == 0)) && postgres_bin >/dev/null
}

postgres_running() { postgres_pid >/dev/null; }

postgres_start() {
	postgres_locate
	local data=$PG_DIR/data version='' bin port
	port=$(postgres_port)
	make_place postgres "$PG_USER" "$PG_DIR"
	if [[ -f $data/PG_VERSION ]]; then version=$(<"$data/PG_VERSION"); fi
	bin=$(postgres_bin "$version") ||
		die postgres "$data is of PostgreSQL $version, which is not installed: install it," \
			"or delete the data with dev/services down --purge postgres"
	postgres_clear
	need_port postgres POSTBUS_PG_PORT "$port"
	if [[ -z $version ]]; then postgres_create "$bin" || return; fi
	postgres_configure "$port" || return
	if [[ $(stat -c %s "$PG_DIR/log" 2>/dev/null) -gt 16777216 ]]; then mv -f "$PG_DIR/log" "$PG_DIR/log.1"; fi
	# Relative paths, because pg_ctl hands them to a shell.
	(cd "$PG_DIR" && run_as "$PG_USER" "$bin/pg_ctl" -s -w -t "$READY_SECONDS" -D data -l log start) </dev/null 9>&-
}

postgres_ready() { postgres_answers "$(postgres_port)"; }

postgres_stop() {
	local bin
	postgres_locate
	bin=$(postgres_bin "$(<"$PG_DIR/data/PG_VERSION")") || die postgres "its pg_ctl is gone: install PostgreSQL again"
	postgres_ctl_stop "$bin" "$1" || postgres_ctl_stop "$bin" immediate
}

postgres_ctl_stop() {
	(cd "$PG_DIR" && run_as "$PG_USER" "$1/pg_ctl" -s -w -t "$PG_STOP_SECONDS" -D data -m "$2" stop) </dev/null
}

postgres_purge() {
	postgres_locate
	purge_place postgres "$PG_DIR"
}

postgres_status() {
	echo "127.0.0.1:$(postgres_running_port), pid $(postgres_pid), $(postgres_log)"
}

postgres_log() {
	postgres_locate
	echo "$PG_DIR/log"
}

postgres_env() {
	echo "export POSTBUS_TEST_POSTGRES='postgres://postbus:postbus@127.0.0.1:$(postgres_port)/postbus?sslmode=disable'"
}

postgres_usage() { echo "POSTBUS_PG_PORT ($PG_DEFAULT_PORT)"; }

postgres_pin() { POSTBUS_PG_PORT=$(postgres_port); }

# postgres_exec: psql and its sisters, as postbus.
postgres_exec() { postgres_client "$(postgres_running_port)" postbus "$@"; }

# ---- inside ----

# postgres_answers PORT
postgres_answers() {
	local bin
	bin=$(postgres_bin) || return
	[[ $(PGPASSWORD=postbus timeout 5 "$bin/psql" -XAtq -c 'SELECT 1' \
		"host=127.0.0.1 port=$1 user=postbus dbname=postbus connect_timeout=3" 2>/dev/null) == 1 ]]
}

# postgres_client PORT DATABASE COMMAND ARG...
postgres_client() {
	local bin
	bin=$(postgres_bin) || die postgres "psql is gone: install PostgreSQL again"
	[[ -x $bin/$3 ]] || die postgres "exec: no $3 in $bin"
	PGHOST=127.0.0.1 PGPORT=$1 PGDATABASE=$2 PGUSER=postbus PGPASSWORD=postbus "$bin/$3" "${@:4}"
}

# postgres_locate sets PG_USER, who the server runs as (it refuses root), and PG_DIR, its folder.
postgres_locate() {
	[[ -z ${PG_DIR-} ]] || return 0
	PG_USER=$(id -un)
	if is_root; then
		PG_USER=$(stat -L -c %U "$STATE/postgres" 2>/dev/null) || PG_USER=root
		if [[ $PG_USER == root || $PG_USER == UNKNOWN ]]; then
			if id postgres >/dev/null 2>&1; then PG_USER=postgres; else PG_USER=nobody; fi
		fi
	fi
	place postgres "$PG_USER"
	PG_DIR=$PLACE
}

# postgres_bin [VERSION]: the folder of pg_ctl: what POSTBUS_PG_BIN says, else Debian's newest (or that VERSION's), else
# what is in PATH.
postgres_bin() {
	local dir
	while read -r dir; do
		if [[ -x $dir/initdb && -x $dir/pg_ctl && -x $dir/postgres && -x $dir/psql ]] &&
			[[ -z ${1-} || $("$dir/postgres" -V) == *" $1."* ]]; then
			echo "$dir"
			return
		fi
	done < <(
		if [[ -n ${POSTBUS_PG_BIN-} ]]; then
			echo "$POSTBUS_PG_BIN"
		else
			printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV
			dirname "$(readlink -f "$(command -v pg_ctl || echo /)")"
		fi
	)
	return 1
}

# postgres_pid: the pid in the server's pid file, if that is a PostgreSQL at work in our folder. After a crash of the
# machine the same number may be anybody's.
postgres_pid() {
	local pid
	postgres_locate
	pid=$(head -n 1 "$PG_DIR/data/postmaster.pid" 2>/dev/null) || return
	postgres_is_ours "$pid" && echo "$pid"
}

postgres_is_ours() {
	[[ $1 =~ ^[0-9]+$ && /proc/$1/cwd -ef $PG_DIR/data && $(cat "/proc/$1/comm" 2>/dev/null) == postgres ]]
}

postgres_running_port() {
	postgres_running && postgres_locate && sed -n 4p "$PG_DIR/data/postmaster.pid"
}

postgres_port() {
	if [[ -n ${POSTBUS_PG_PORT-} ]]; then
		echo "$POSTBUS_PG_PORT"
	else
		postgres_running_port 2>/dev/null || echo "$PG_DEFAULT_PORT"
	fi
}

# postgres_clear removes what a crash left: backends that outlived their server (most end by themselves), then the lock
# files, which PostgreSQL would obey if the number in them is somebody else's by now, or a zombie's.
postgres_clear() {
	local try dir pid left
	for try in {1..50}; do
		left=()
		for dir in /proc/[0-9]*; do
			pid=${dir#/proc/}
			if postgres_is_ours "$pid"; then left+=("$pid"); fi
		done
		((${#left[@]} > 0)) || break
		if ((try == 25)); then kill -QUIT "${left[@]}" 2>/dev/null || true; fi
		sleep 0.2
	done
	((${#left[@]} == 0)) || die postgres "processes of a server that crashed are still there: ${left[*]}"
	rm -f -- "$PG_DIR/data/postmaster.pid" "$PG_DIR"/run/.s.PGSQL.*
}

# postgres_create BIN: an interrupted one leaves nothing that looks like a finished one.
postgres_create() {
	local bin=$1 new=$PG_DIR/data.new
	rm -rf -- "$new"
	postgres_write "$PG_DIR/password" <<<postbus || return
	(
		cd "$PG_DIR" &&
			run_as "$PG_USER" "$bin/initdb" -D "$new" -U postbus --pwfile="$PG_DIR/password" --auth=scram-sha-256 \
				--encoding=UTF8 --locale=C --no-instructions &&
			run_as "$PG_USER" "$bin/postgres" --single -j -D "$new" postgres <<<'CREATE DATABASE postbus;' &&
			echo "include = '../postbus.conf'" >>"$new/postgresql.conf"
	) 2>&1 | postgres_write "$PG_DIR/log" || return
	rm -f "$PG_DIR/password"
	mv "$new" "$PG_DIR/data"
}

# postgres_configure PORT. The socket's folder is relative to the data folder: an absolute path may be longer than the
# 107 bytes that a socket can have.
postgres_configure() {
	run_as "$PG_USER" mkdir -p "$PG_DIR/run" &&
		postgres_write "$PG_DIR/postbus.conf" <<END
listen_addresses = '127.0.0.1'
port = $1
unix_socket_directories = '../run'
fsync = on
synchronous_commit = on
wal_level = logical
max_replication_slots = 10
max_wal_senders = 10
max_prepared_transactions = 10
max_connections = 200
shared_buffers = 128MB
timezone = 'UTC'
log_timezone = 'UTC'
cluster_name = 'postbus'
log_line_prefix = '%m [%p] %a '
END
}

postgres_write() { run_as "$PG_USER" tee "$1" >/dev/null; }
