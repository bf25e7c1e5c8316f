# shellcheck shell=bash
#
# Apache Kafka for the tests: one KRaft node, broker and controller in one, as Maven Central has it: the version stands in
# kafka/pom.xml. No topic comes into being by itself. It listens on 127.0.0.1.
#
# The jars are kept beside the data, in kafka-<version>.<checksum of pom.xml>, for every folder of data of this clone.

readonly KAFKA_DEFAULT_PORT=59091 KAFKA_STOP_SECONDS=60 KAFKA_PROCESS='kafka\.Kafka'

readonly KAFKA_DIR=$STATE/kafka

# The quick compiler only: with both, half of the time of a start goes into optimizing what a test hardly uses. And without
# what the caller's shell tells every JVM.
KAFKA_JAVA_OPTIONS=(-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData)
KAFKA_CLEAN=(env -u JAVA_TOOL_OPTIONS -u JDK_JAVA_OPTIONS -u _JAVA_OPTIONS LC_ALL=C.UTF-8 MALLOC_ARENA_MAX=2)

kafka_order() { echo 30; }

kafka_prepare() {
	check_port kafka POSTBUS_KAFKA_PORT "$(kafka_running_port)"
	if kafka_running; then return; fi
	kafka_java >/dev/null || kafka_install default-jre-headless
	kafka_java >/dev/null || die kafka "Kafka needs Java 17 or newer: install it, or set JAVA_HOME"
	kafka_jars >/dev/null || kafka_download
}

kafka_running() { kafka_pid >/dev/null; }

kafka_start() {
	local port controller jars
	jars=$(kafka_jars)
	port=$(kafka_port)
	mkdir -p "$KAFKA_DIR"
	chmod 700 "$KAFKA_DIR"
	end_workers immediate 0 "$KAFKA_DIR" "$KAFKA_PROCESS" || die kafka "processes of an earlier run do not end"
	need_port kafka POSTBUS_KAFKA_PORT "$port"
	controller=$(next_port $((port + 2))) || die kafka "no free port for the controller: choose another POSTBUS_KAFKA_PORT"
	kafka_configure "$KAFKA_DIR" "$jars" "$port" "$controller"
	[[ -d $KAFKA_DIR/data ]] || kafka_format "$KAFKA_DIR" || return
	kafka_command "$KAFKA_DIR"
	launch "$(id -u)" "$KAFKA_DIR" "${KAFKA_COMMAND[@]}"
}

# kafka_ready asks for the brokers of the cluster (Metadata, version 1, no topics). This one is among them as soon as it
# takes requests.
kafka_ready() { kafka_answers "$(kafka_running_port)"; }

kafka_stop() { end_workers "$1" "$KAFKA_STOP_SECONDS" "$KAFKA_DIR" "$KAFKA_PROCESS"; }

kafka_purge() { rm -rf -- "$KAFKA_DIR"; }

kafka_status() { echo "127.0.0.1:$(kafka_running_port), pid $(kafka_pid), $(kafka_log)"; }

kafka_log() { echo "$KAFKA_DIR/log"; }

kafka_env() { echo "export POSTBUS_TEST_KAFKA='127.0.0.1:$(kafka_port)'"; }

kafka_usage() { echo "POSTBUS_KAFKA_PORT ($KAFKA_DEFAULT_PORT)"; }

kafka_pin() { POSTBUS_KAFKA_PORT=$(kafka_port); }

# kafka_exec TOOL ARG...: the tools of Kafka under the names of its bin folder, or the name of a class.
kafka_exec() {
	local class server=(--bootstrap-server "127.0.0.1:$(kafka_running_port)")
	class=$(kafka_class "$1") || die kafka "exec: no tool $1"
	if [[ " ${*:2} " =~ \ --bootstrap-server[\ =] || $class == *.DumpLogSegments ]]; then server=(); fi
	"${KAFKA_CLEAN[@]}" "$(kafka_java)" "${KAFKA_JAVA_OPTIONS[@]}" -Xmx256m -cp "$(kafka_jars)/*" \
		"$class" "${@:2}" "${server[@]}"
}

# ---- inside ----

# kafka_java: the first of JAVA_HOME, PATH and Debian's that is Java 17 or newer.
kafka_java() {
	local java version
	for java in "${JAVA_HOME-}/bin/java" "$(command -v java)" /usr/lib/jvm/*/bin/java; do
		[[ -x $java ]] || continue
		version=$("${KAFKA_CLEAN[@]}" "$java" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p')
		if ((${version:-0} >= 17)); then
			echo "$java"
			return
		fi
	done
	return 1
}

kafka_install() {
	local howTo="apt-get install default-jre-headless maven"
	may_install || die kafka "Kafka needs Java 17 or newer, and Maven to fetch it: $howTo"
	apt_install kafka "$@" || die kafka "could not install Java and Maven: $howTo"
}

kafka_version() { sed -nE 's/.*<kafka\.version>(.*)<.*/\1/p' "$REPO/dev/services.d/kafka/pom.xml"; }

kafka_jars_name() { echo "kafka-$(kafka_version).$(cksum <"$REPO/dev/services.d/kafka/pom.xml" | cut -d' ' -f1)"; }

# kafka_jars: the folder of the jars, if they are there.
kafka_jars() {
	local name base
	name=$(kafka_jars_name)
	for base in "$REPO/.services" "$STATE"; do
		if [[ -r $base/$name ]]; then
			echo "$base/$name"
			return
		fi
	done
	return 1
}

# kafka_download: into the clone's folder if it is ours, so that private folders of data share the jars; only one at a time.
kafka_download() {
	local base=$REPO/.services name new
	name=$(kafka_jars_name)
	if [[ ! -O $REPO || -d $base && ! -O $base ]]; then base=$STATE; fi
	mkdir -p "$base"
	exec 8>>"$base/kafka.lock"
	flock -w "$LOCK_SECONDS" 8 || die kafka "somebody has been fetching Kafka for $LOCK_SECONDS s"
	if ! kafka_jars >/dev/null; then
		[[ -n $(command -v mvn) ]] || kafka_install maven
		new=$base/kafka.new
		say kafka "fetching Apache Kafka $(kafka_version) with Maven"
		kafka_fetch "$new" ||
			die kafka "could not fetch Kafka: does Maven reach its central repository (proxies, mirrors: ~/.m2/settings.xml)?"
		kafka_train "$new"
		mv -T "$new" "$base/$name"
	fi
	exec 8>&-
}

# kafka_fetch FOLDER: quiet; the end of Maven's own output only when it fails twice.
kafka_fetch() {
	local try output home options=()
	output=$(mktemp)
	home=$(getent passwd "$(id -u)" | cut -d: -f6)
	if [[ ! -w $home ]]; then options=(-Dmaven.repo.local="$1/repository"); fi
	for try in 1 2; do
		rm -rf -- "$1"
		mkdir "$1"
		# Strict checksums.
		if timeout 600 env LC_ALL=C.UTF-8 mvn -q -B -C "${options[@]}" -f "$REPO/dev/services.d/kafka/pom.xml" \
			org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies -DincludeScope=runtime \
			-DoutputDirectory="$1" </dev/null >"$output" 2>&1 8>&- 9>&-; then
			rm -rf -- "$output" "$1/repository"
			return 0
		fi
		say kafka "Maven failed (try $try of 2)" >&2
	done
	tail -n 20 "$output" >&2
	rm -rf -- "$output" "$1"
	return 1
}

# kafka_train JARS: a throw-away node writes the archive of its classes when it ends. With it a start takes half of the time
# and less memory; without it Kafka works, too.
kafka_train() {
	local dir=$1/train port controller try
	say kafka "training the JVM, once"
	(
		mkdir "$dir"
		port=$(next_port $((KAFKA_DEFAULT_PORT + 20)))
		controller=$(next_port $((port + 2)))
		kafka_configure "$dir" .. "$port" "$controller"
		kafka_format "$dir"
		cd "$dir"
		kafka_command . -XX:ArchiveClassesAtExit=jars/classes.jsa
		timeout "$READY_SECONDS" "${KAFKA_COMMAND[@]}" </dev/null >>log 2>&1 8>&- 9>&- &
		until kafka_answers "$port"; do
			kill -0 $! || exit
			sleep 0.2
		done
		kill $!
		wait $!
	) >/dev/null 2>&1 || true
	rm -rf -- "$dir"
}

# kafka_class TOOL
kafka_class() {
	local tools=org.apache.kafka.tools
	case $1 in
	*.*) echo "$1" ;;
	kafka-acls) echo "$tools.AclCommand" ;;
	kafka-broker-api-versions) echo "$tools.BrokerApiVersionsCommand" ;;
	kafka-cluster) echo "$tools.ClusterTool" ;;
	kafka-configs) echo "$tools.ConfigCommand" ;;
	kafka-console-consumer) echo "$tools.consumer.ConsoleConsumer" ;;
	kafka-console-producer) echo "$tools.ConsoleProducer" ;;
	kafka-consumer-groups) echo "$tools.consumer.group.ConsumerGroupCommand" ;;
	kafka-consumer-perf-test) echo "$tools.ConsumerPerformance" ;;
	kafka-delete-records) echo "$tools.DeleteRecordsCommand" ;;
	kafka-dump-log) echo "$tools.DumpLogSegments" ;;
	kafka-get-offsets) echo "$tools.GetOffsetShell" ;;
	kafka-groups) echo "$tools.GroupsCommand" ;;
	kafka-log-dirs) echo "$tools.LogDirsCommand" ;;
	kafka-metadata-quorum) echo "$tools.MetadataQuorumCommand" ;;
	kafka-producer-perf-test) echo "$tools.ProducerPerformance" ;;
	kafka-topics) echo "$tools.TopicCommand" ;;
	kafka-transactions) echo "$tools.TransactionsCommand" ;;
	*) return 1 ;;
	esac
}

kafka_pid() { launched "$KAFKA_DIR" "$KAFKA_PROCESS"; }

kafka_running_port() {
	kafka_running && sed -nE 's/^advertised\.listeners=PLAINTEXT:.*:([0-9]+)$/\1/p' "$KAFKA_DIR/server.properties"
}

kafka_port() {
	if [[ -n ${POSTBUS_KAFKA_PORT-} ]]; then
		echo "$POSTBUS_KAFKA_PORT"
	else
		kafka_running_port || echo "$KAFKA_DEFAULT_PORT"
	fi
}

# kafka_configure FOLDER JARS PORT CONTROLLER-PORT. Paths are relative to the folder: Java takes colons and commas in them
# for separators. The archive of the classes knows the jars under these paths, too. After a crash the controller does not
# let the broker in before the session of the one that crashed is over.
kafka_configure() {
	ln -sfn "$2" "$1/jars"
	rm -rf -- "$1/tmp"
	mkdir "$1/tmp"
	cat >"$1/log4j2.properties" <<END
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
END
	cat >"$1/server.properties" <<END
process.roles=broker,controller
node.id=1
log.dirs=data
listeners=PLAINTEXT://127.0.0.1:$3,CONTROLLER://127.0.0.1:$4
advertised.listeners=PLAINTEXT://127.0.0.1:$3
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:$4
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500

auto.create.topics.enable=false
num.partitions=6
log.segment.delete.delay.ms=1000
log.cleaner.dedupe.buffer.size=4194304

group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000

offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
END
}

# kafka_format FOLDER: an interrupted one leaves nothing that looks like a finished one.
kafka_format() {
	local java id
	java=$(kafka_java)
	id=$(head -c 15 /dev/urandom | base64 | tr +/ -_)AQ # 16 bytes
	rm -rf -- "$1/data.new"
	sed 's/^log\.dirs=.*/log.dirs=data.new/' "$1/server.properties" >"$1/format.properties"
	(
		cd "$1"
		"${KAFKA_CLEAN[@]}" "$java" "${KAFKA_JAVA_OPTIONS[@]}" -Xmx128m -cp 'jars/*' kafka.tools.StorageTool format \
			--config format.properties --cluster-id "A${id:1}"
	) >"$1/log" 2>&1 || return
	mv "$1/data.new" "$1/data"
}

# kafka_command FOLDER [OPTION]: KAFKA_COMMAND, to be run in that folder.
kafka_command() {
	local jars=("$1"/jars/*.jar)
	printf -v jars 'jars/%s:' "${jars[@]##*/}"
	KAFKA_COMMAND=("${KAFKA_CLEAN[@]}" "$(kafka_java)" -Xms256m -Xmx512m "${KAFKA_JAVA_OPTIONS[@]}"
		"${2:--XX:SharedArchiveFile=jars/classes.jsa}" -XX:+ExitOnOutOfMemoryError -Djava.io.tmpdir=tmp
		-Dlog4j2.configurationFile=log4j2.properties -cp "${jars%:}" kafka.Kafka server.properties)
}

kafka_answers() {
	local reply
	[[ -n $1 ]] || return
	reply=$(
		{
			exec 3<>"/dev/tcp/127.0.0.1/$1" &&
				printf '\0\0\0\x11\0\x03\0\x01\0\0\0\x2a\0\x03dev\0\0\0\0' >&3 &&
				timeout 3 head -c 12 <&3 | od -An -v -tx1 -j4
		} 2>/dev/null
	)
	[[ $reply == " 00 00 00 2a 00 00 00 01" ]] # the number of our request, one broker
}
