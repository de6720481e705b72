"""What users get wrong: option sets, and offsets in a checkpoint. A table.

Each option set changes ``GOOD``; ``None`` takes an option away. Beside it stands the option that
the error must name, and a piece of its text that tells the user what to do.
"""

from __future__ import annotations

from typing import NamedTuple

GOOD = {
    "kafka.bootstrap.servers": "localhost:9092",
    "kafka.group.id": "g",
    "subscribe": "orders",
}


class BadOptions(NamedTuple):
    """An option set that is refused, for a stream or for a batch."""

    named: str
    says: str
    changes: dict[str, str | None]
    of_batch: bool = False


_SERVERS = "host:port, several separated by commas"
_ONE_SUBSCRIPTION = "exactly one of subscribe, subscribePattern and assign"
_TOPICS = "topic names separated by commas"
_PATTERN = "a regular expression"
_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" '
_SASL: dict[str, str | None] = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": _JAAS + 'password="p";',
}
_TLS: dict[str, str | None] = {"kafka.security.protocol": "SSL"}


def _servers(text: str | None, says: str = _SERVERS) -> BadOptions:
    name = "kafka.bootstrap.servers"
    return BadOptions(name, says, {name: text})


def _one(name: str, says: str, *values: str | None) -> list[BadOptions]:
    return [BadOptions(name, says, {name: value}) for value in values]


def _pattern(says: str, *values: str) -> list[BadOptions]:
    return [
        BadOptions("subscribePattern", says, {"subscribe": None, "subscribePattern": value})
        for value in values
    ]


def _starting(says: str, *values: str) -> list[BadOptions]:
    return _one("startingOffsets", says, *values)


def _batch(name: str, says: str, *values: str) -> list[BadOptions]:
    changes: dict[str, str | None] = {"subscribe": None} if name == "assign" else {}
    return [BadOptions(name, says, {**changes, name: value}, of_batch=True) for value in values]


def _assigned(name: str, says: str, value: str | None) -> list[BadOptions]:
    changes = {"subscribe": None, "assign": '{"orders":[0]}', name: value}
    return [BadOptions(name, says, changes)]


BAD_OPTIONS: list[BadOptions] = [
    # Where Kafka is.
    _servers(None, "is missing"),
    *map(_servers, ("", " ", ",", "localhost", "localhost:", ":9092", "localhost:kafka")),
    *map(_servers, ("localhost:0", "localhost:65536", "localhost:-1", ", ,")),
    *map(_servers, ("a:1,b", "a:1;b:2", "a:1 b:2", "http://a:1/", "[::1:9092", "a:1\nb:2")),
    *map(_servers, ("['a:1']", "a:٩٠٩٢", "a" * 64 + ":9092", "a..b:9092")),
    BadOptions(
        "bootstrap.servers",
        "the nearest is kafka.bootstrap.servers",
        {"kafka.bootstrap.servers": None, "bootstrap.servers": "localhost:9092"},
    ),
    BadOptions(
        "kafka.bootstrap.server",
        "the nearest is kafka.bootstrap.servers",
        {"kafka.bootstrap.servers": None, "kafka.bootstrap.server": "localhost:9092"},
    ),
    # What is read.
    *_one("subscribe", _ONE_SUBSCRIPTION, None),
    *_one("subscribe", _TOPICS, "", " ", ",", " , ,", "orders payments"),
    *_one("subscribe", _TOPICS, "orders;payments", "orders/eu", "órdenes", ".", "..", "x" * 250),
    *_one("subscribe", _TOPICS, '["orders"]', "orders.*", "orders\x00"),
    BadOptions(
        "subscribePattern",
        "given: subscribe and subscribePattern",
        {"subscribePattern": "orders.*"},
    ),
    *_pattern(_PATTERN, "orders[", "*", "(", "a)(b", "(?P<n>x", "a{2,1}", "[z-a]", "\\"),
    *_pattern(
        _PATTERN, r"\p{Alpha}+", "[[ab]c]", r"(?<year>\d+)", "(?u-i)x", "(" * 500 + ")" * 500
    ),
    *_pattern("non-empty", "", "  "),
    *_assigned("kafka.group.id", "the consumer group of the query", None),
    *_assigned("kafka.group.instance.id", "has no use with assign: the query joins no group", "a"),
    *_assigned(
        "kafka.group.protocol", "has no use with assign: the query joins no group", "classic"
    ),
    *_assigned("revokeTimeoutMs", "nothing is revoked", "1000"),
    *_assigned("shareGroup", "has no use with assign", "true"),
    *_assigned("maxBatchDurationMs", "nothing is revoked", "1000"),
    *_assigned("startingOffsets", "partitions that assign names", '{"orders":{"1":5}}'),
    BadOptions("subscribe", "given: assign and subscribe", {"assign": '{"orders":[0]}'}),
    *_batch("assign", "not JSON", "", "orders", "orders:0", '{"orders":[0,]}', "{orders:[0]}"),
    *_batch("assign", "not an object that maps topics", "{}", "[]", '["orders"]', "0", "null"),
    *_batch("assign", "does not list partitions", '{"orders":0}', '{"orders":[]}'),
    *_batch("assign", "does not list partitions", '{"orders":{"0":5}}', '{"orders":"0"}'),
    *_batch("assign", "is not a partition number", '{"orders":[-1]}', '{"orders":["0"]}'),
    *_batch("assign", "is not a partition number", '{"orders":[0.0]}', '{"orders":[true]}'),
    *_batch("assign", "is not a topic name", '{"":[0]}', '{"a b":[0]}', '{"..":[0]}'),
    *_batch("assign", "occurs twice", '{"orders":[0],"orders":[1]}'),
    # The group.
    *_one("kafka.group.id", "is missing", None),
    *_one("kafka.group.id", "non-empty", "", "   "),
    BadOptions("groupIdPrefix", "non-empty", {"kafka.group.id": None, "groupIdPrefix": " "}),
    BadOptions(
        "shareGroup",
        "it gives each query a group of its own",
        {"kafka.group.id": None, "groupIdPrefix": "p", "shareGroup": "true"},
    ),
    *_one("shareGroup", "true or false", "yes", ""),
    BadOptions(
        "kafka.group.id", "group.id does not count", {"kafka.group.id": None, "group.id": "g"}
    ),
    *_one("kafka.group.protocol", "classic or consumer or auto", "share", "", "2"),
    *_one("kafka.group.instance.id", "ASCII letters", "", "a b", "ü", ".", "x" * 250),
    *_one("kafka.session.timeout.ms", "a whole number", "", "45s", "0", "-1", "1e4", "2147483648"),
    *_one("kafka.session.timeout.ms", "more than kafka.heartbeat.interval.ms", "300", "1"),
    *_one("kafka.heartbeat.interval.ms", "less than kafka.session.timeout.ms", "45000", "100000"),
    *_one("kafka.max.poll.interval.ms", "a whole number", "5 minutes", "0", "∞"),
    *_one("kafka.enable.auto.commit", "leave it out", "true", "", "yes"),
    *_one("kafka.group.remote.assignor", "kafka.group.protocol=classic", "uniform"),
    # Where it starts.
    *_starting("group, earliest, latest, or JSON", "", "begin", "early", "0", "-2", "null", "true"),
    *_starting("not JSON", "{", "{'orders':{'0':1}}", '{"orders":{0:1}}', "[" * 100_000, "\x00"),
    *_starting("not an object that maps topics", "[]", "{}", '["orders"]', '"earliest"', "5"),
    *_starting("does not map partitions", '{"orders":5}', '{"orders":{}}', '{"orders":[0]}'),
    *_starting("does not map partitions", '{"orders":null}', '{"orders":"earliest"}'),
    *_starting("is not a partition number", '{"orders":{"-1":5}}', '{"orders":{"one":5}}'),
    *_starting("is not a partition number", '{"orders":{"00":5}}', '{"orders":{"":5}}'),
    *_starting("not a partition number", '{"orders":{"2147483648":5}}', '{"orders":{"\u0660":5}}'),
    *_starting("is not a valid offset", '{"orders":{"0":"5"}}', '{"orders":{"0":1.5}}'),
    *_starting("is not a valid offset", '{"orders":{"0":true}}', '{"orders":{"0":-3}}'),
    *_starting(
        "not a valid offset", '{"orders":{"0":null}}', '{"orders":{"0":9223372036854775808}}'
    ),
    *_starting("is not a valid offset", '{"orders":{"0":NaN}}', '{"orders":{"0":1e400}}'),
    *_starting("is not subscribed to", '{"payments":{"0":5}}', '{"Orders":{"0":5}}'),
    *_starting("occurs twice", '{"orders":{"0":5,"0":6}}', '{"orders":{"0":5},"orders":{"1":6}}'),
    *_starting("a number of 5000 digits", '{"orders":{"0":' + "9" * 5_000 + "}}"),
    *_one("startingOfsets", "the nearest is startingOffsets", "earliest"),
    *_one("startingTimestamp", "a whole number from 0", "", "-1", "now", "2026-01-01", "1.7e12"),
    *_one("startingTimestamp", "a whole number from 0", "1700000000.5", "9" * 400, "1 700"),
    *_one("startingOffsetsByTimestamp", "not JSON", "", "{", "2026-01-01"),
    *_one("startingOffsetsByTimestamp", "not an object that maps topics", "{}", "17", "[]"),
    *_one("startingOffsetsByTimestamp", "is not a valid timestamp", '{"orders":{"0":-1}}'),
    *_one("startingOffsetsByTimestamp", "not a valid timestamp", '{"orders":{"0":"2026-01-01"}}'),
    *_one("startingOffsetsByTimestamp", "is not a valid timestamp", '{"orders":{"0":1.5}}'),
    *_one("startingOffsetsByTimestamp", "is not a partition number", '{"orders":{"x":1}}'),
    *_one("startingOffsetsByTimestamp", "is not subscribed to", '{"other":{"0":1}}'),
    *_one("startingOffsetsByTimestampStrategy", "error or latest", "earliest", "", "fail"),
    *_starting("is not subscribed to", '{"":{"0":5}}'),
    *_batch("startingOffsets", "an offset or earliest, for a batch", "latest", "LATEST"),
    *_batch("startingOffsets", "an offset or earliest, for a batch", '{"orders":{"0":-1}}'),
    BadOptions(
        "kafka.group.id",
        "startingOffsets=group",
        {"kafka.group.id": None, "startingOffsets": "group"},
        of_batch=True,
    ),
    # Where it ends.
    *_one("endingOffsets", "a stream has no end", '{"orders":{"0":5}}'),
    *_one("endingTimestamp", "a stream has no end", "1700000000000"),
    *_one("endingOffsetsByTimestamp", "a stream has no end", '{"orders":{"0":1}}'),
    *_batch("endingOffsets", "latest, or JSON", "", "earliest", "end", "5", '{"orders":5}'),
    *_batch(
        "endingOffsets",
        "is not a valid ending offset",
        '{"orders":{"0":-2}}',
        '{"orders":{"0":"x"}}',
    ),
    *_batch("endingTimestamp", "a whole number from 0", "", "-1", "tomorrow", "2026-01-01"),
    *_batch("endingOffsetsByTimestamp", "is not a valid timestamp", '{"orders":{"0":-1}}'),
    *_batch("endingOffsetsByTimestamp", "not JSON", "", "yesterday"),
    *_one("kafka.auto.offset.reset", "earliest or latest", "none", "", "smallest"),
    # How much at a time.
    *_one("maxOffsetsPerTrigger", "a whole number from 1", "", "0", "-5", "1e3", "1000.0", "1_000"),
    *_one("maxOffsetsPerTrigger", "a whole number from 1", "9223372036854775808", "9" * 5_000),
    *_one("minOffsetsPerTrigger", "a whole number from 1", "", "0", "-5", "1e3", "many"),
    BadOptions(
        "minOffsetsPerTrigger",
        "at most maxOffsetsPerTrigger, which is 8",
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
    ),
    *_one("maxTriggerDelay", "a", "", "15 minutes", "-1s", "1.5h", "soon", "9223372036854775807d"),
    *_one("minPartitions", "a whole number from 1", "", "0", "-1", "2147483648", "1.0"),
    *_one("maxRecordsPerPartition", "a whole number from 1", "", "0", "-1", "lots"),
    *_one("kafkaConsumer.pollTimeoutMs", "a whole number from 1", "", "0", "2m"),
    *_one("fetchOffset.numRetries", "a whole number from 0", "", "-1", "three"),
    *_one("fetchOffset.retryIntervalMs", "a whole number from 0", "", "-1", "10ms"),
    *_one("maxBytesPerTrigger", "a whole number from 1", "10MB", "0", "-1", ""),
    *_one("readers", "a whole number from 1 to 1000", "0", "-1", "two", "", "1001", "2.0", "²"),
    # Yes and no.
    *_one("includeHeaders", "true or false", "", "yes", "1", "on", "True!"),
    *_one("failOnDataLoss", "true or false", "no", "0", "nope", ""),
    *_one("includeRebalanceEvents", "true or false", "y", ""),
    # Its own.
    *_one("revokeTimeoutMs", "kafka.max.poll.interval.ms", "0", "-1", "300001", "5s", ""),
    *_one("maxBatchDurationMs", "a whole number", "0", "-1", "5m", ""),
    # Kafka's client.
    *_one("kafka.key.deserializer", "DataFrame operations", "x.Y"),
    *_one("kafka.value.deserializer", "DataFrame operations", "x.Y"),
    *_one("kafka.interceptor.classes", "leave it out", "x.Y"),
    *_one("kafka.isolation.level", "read_uncommitted or read_committed", "READ_COMMITTED", ""),
    *_one("kafka.", "is unknown", "1"),
    *_one("kafka.isolation_level", "the nearest is kafka.isolation.level", "read_committed"),
    *_one("kafka.isolaton.lvel", "the nearest is kafka.isolation.level", "read_committed"),
    *_one("kafka.isolation", "the nearest is kafka.isolation.level", "read_committed"),
    *_one("kafka.ssl.trustore.location", "the nearest is kafka.ssl.truststore.location", "/x"),
    *_one("kafka.sasl.no.such.setting", "Kafka's consumer has no such setting", "1"),
    *_one("kafka.ssl.enabled.protocols", "allow TLSv1.3 alone", "TLSv1.3", "TLSv1.3,"),
    *_one("failOnDataLos", "the nearest is failOnDataLoss", "false"),
    *_one("starting.offsets", "the nearest is startingOffsets", "earliest"),
    *_one("checkpoint", "the nearest is checkpointLocation", "/c"),
    *_one("kafka_bootstrap_servers", "the nearest is kafka.bootstrap.servers", "h:1"),
    *_one("headers", "includeHeaders", "true"),
    *_one("kafka.startingOffsets", "the nearest is startingOffsets", "earliest"),
    *_one("kafka.maxOffsetsPerTrigger", "the nearest is maxOffsetsPerTrigger", "5"),
    *_one("kafka.sasl.password", "in kafka.sasl.jaas.config", "p"),
    *_one("kafka.ssl.ca.location", "use kafka.ssl.truststore.location", "/ca.pem"),
    *_one("includeFetchMetadata", "not supported yet", "true"),
    *_one("kafka.fetch.max.wait.ms", "less than kafka.request.timeout.ms", "30000"),
    *_one("kafka.fetch.min.bytes", "a whole number", "-1", "1kB"),
    *_one("kafka.check.crcs", "true or false", "yes"),
    *_one("kafka.client.dns.lookup", "use_all_dns_ips", "default"),
    # Security.
    *_one("kafka.security.protocol", "SASL_SSL", "TLS", "", "SASL"),
    BadOptions(
        "kafka.security.protocol",
        "because kafka.ssl.truststore.location is set",
        {"kafka.ssl.truststore.location": "ca.pem", "kafka.ssl.truststore.type": "PEM"},
    ),
    BadOptions("kafka.sasl.mechanism", "PLAIN", {**_SASL, "kafka.sasl.mechanism": "MD5"}),
    BadOptions("kafka.sasl.jaas.config", "is missing", {**_SASL, "kafka.sasl.jaas.config": None}),
    *(
        BadOptions("kafka.sasl.jaas.config", "password=", {**_SASL, "kafka.sasl.jaas.config": text})
        for text in ("", _JAAS + 'password="p"', _JAAS + ";", _JAAS + 'password="p', "u:p")
    ),
    BadOptions(
        "kafka.ssl.truststore.location",
        "readable on this machine (No such file",
        {**_TLS, "kafka.ssl.truststore.location": "trust.jks"},
    ),
    BadOptions(
        "kafka.ssl.keystore.location",
        "readable on this machine (No such file",
        {
            **_TLS,
            "kafka.ssl.keystore.location": "key.jks",
            "kafka.ssl.keystore.type": "JKS",
        },
    ),
]


#: What production jobs give Spark's own source, which ignores it: the option, some value, and what
#: the warning says of it. The first that a reader would take for a setting of Kafka's client.
WITHOUT_EFFECT: list[tuple[str, str, str]] = [
    *(
        (name, "1", "Kafka's settings count with kafka. in front")
        for name in (
            "group.id",
            "client.id",
            "enable.auto.commit",
            "auto.offset.reset",
            "isolation.level",
            "max.poll.records",
            "session.timeout.ms",
            "key.deserializer",
            "value.deserializer",
            "security.protocol",
            "sasl.jaas.config",
            "ssl.truststore.password",
            "acks",
            "retries",
        )
    ),
    ("inferSchema", "true", "the columns are fixed"),
    ("header", "true", "the columns are fixed"),
    ("mode", "PERMISSIVE", "values are bytes"),
    ("topic", "orders", "an option of the sink"),
    ("path", "/data", "topics are named by subscribe"),
    *(
        (name, "x", "this source has no such option")
        for name in (
            "classification",
            "connectionName",
            "topics",
            "maxFilesPerTrigger",
            "streamName",
            "awsRegion",
            "user",
            "a",
            "trigger",
            "ignoreChanges",
            "",
        )
    ),
    ("kafka.max.poll.records", "500", "maxOffsetsPerTrigger limits a micro-batch"),
    ("kafka.partition.assignment.strategy", "range", "cooperative-sticky"),
    ("kafka.auto.commit.interval.ms", "1000", "when Spark has committed the batch"),
    ("kafka.acks", "all", "no setting of a consumer"),
    ("kafka.linger.ms", "5", "no setting of a consumer"),
    ("kafka.ssl.client.auth", "required", "no setting of a consumer"),
    ("kafka.key.serializer", "x.Y", "no setting of a consumer"),
    ("kafka.schema.registry.url", "http://h", "Kafka's consumer has no such setting"),
    ("kafka.no.such.setting", "1", "Kafka's consumer has no such setting"),
    ("kafka.default.api.timeout.ms", "1", "kafka.request.timeout.ms"),
    ("kafka.sasl.kerberos.service.name", "kafka", "Kerberos"),
    ("kafka.ssl.enabled.protocols", "TLSv1.2", "TLSv1.3, or TLSv1.2"),
    ("kafka.ssl.protocol", "TLS", "TLSv1.3, or TLSv1.2"),
]

#: The same for settings whose only value, if they are given, is what happens anyway.
AS_IT_IS: list[tuple[str, str]] = [
    ("kafka.enable.auto.commit", "False"),
    (
        "kafka.partition.assignment.strategy",
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    ),
    ("kafka.value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer"),
    ("kafka.enable.metrics.push", "false"),
    ("kafka.ssl.enabled.protocols", "TLSv1.3,TLSv1.2"),
]


class BadOffset(NamedTuple):
    """An offset, as a line of the checkpoint, that is refused, and the field that it names."""

    named: str
    line: str


def _offset(
    ranges: str = "{}", positions: str = "{}", state: str = "{}", version: str = "2"
) -> str:
    return f'{{"version":{version},"ranges":{ranges},"positions":{positions},"state":{state}}}'


GOOD_OFFSET = _offset('{"orders":{"0":[5,7]}}', '{"orders":{"1":3}}', '{"warm_up":null}')

BAD_OFFSETS: list[BadOffset] = [
    # Of another source: a rate source, a file source, none. (That of Spark's own Kafka is good.)
    BadOffset("version", '{"orders":{"0":-2}}'),
    BadOffset("version", "17"),
    BadOffset("version", '{"logOffset":3}'),
    *(BadOffset("version", line) for line in ("null", "[]", '"v1"', "{}", "true", "1.5")),
    # Of another version.
    *(
        BadOffset("version", _offset(version=version))
        for version in ("4", "5", "0", "-1", '"1"', "null", "true", "1.0", "[1]", "9" * 4_000)
    ),
    # Cut off, or of the wrong kind.
    BadOffset("state", '{"version":2}'),
    BadOffset("state", '{"version":2,"ranges":{},"positions":{}}'),
    BadOffset("positions", '{"version":2,"ranges":{},"state":{}}'),
    BadOffset("colour", '{"version":2,"ranges":{},"positions":{},"state":{},"colour":1}'),
    *(BadOffset("ranges", _offset(text)) for text in ("[]", "null", "1", '"x"')),
    *(BadOffset("positions", _offset("{}", text)) for text in ("[]", "null", "1", '"x"')),
    *(BadOffset("state", _offset("{}", "{}", text)) for text in ("[]", "null", "1", '"x"')),
    # Ranges.
    *(
        BadOffset("ranges.orders", _offset(f'{{"orders":{text}}}'))
        for text in (
            *("[]", "7", "null", '{"0":7}', '{"0":[]}', '{"0":[1]}', '{"0":[1,2,3]}'),
            *('{"0":[2,1]}', '{"0":[-2,1]}', '{"0":["1","2"]}', '{"0":[1.0,2.0]}'),
            *('{"0":[0,true]}', '{"0":[0,9223372036854775808]}', '{"0":[null,1]}'),
            *('{"-1":[0,1]}', '{"x":[0,1]}', '{"01":[0,1]}', '{"":[0,1]}', '{"1.0":[0,1]}'),
            *('{"2147483648":[0,1]}', '{"٣":[0,1]}', f'{{"{"1" * 5_000}":[0,1]}}'),
        )
    ),
    *(
        BadOffset("positions.orders", _offset("{}", f'{{"orders":{text}}}'))
        for text in ("[]", "7", '{"0":null}', '{"0":-1}', '{"0":"5"}', '{"0":[1,2]}', '{"x":5}')
    ),
    BadOffset("positions", _offset('{"orders":{"0":[1,2]}}', '{"orders":{"0":2}}')),
    # What the group said.
    *(
        BadOffset(f"state.{part}", _offset("{}", "{}", f'{{"{part}":{text}}}'))
        for part, texts in {
            "members": ("{}", "null", "[1]", "[{}]", '[{"generation":1}]'),
            "revoking": ("[]", "1", '{"t":0}', '{"t":["0"]}', '{"t":[-1]}'),
            "lost": ("[]", '{"t":{"0":1}}', '{"t":[2147483648]}'),
            "events": ("{}", "[1]", '[["lost","t",0]]', '[[1,"t",0,1]]', '[["lost","t",0,"1"]]'),
            "run": ("1", "[]", "true"),
            "warm_up": ("-1", '"1"', "1.5", "true"),
            "initial": ("[]", "1", '{"t":0}', '{"t":[-1]}'),
            "imported": ("[]", "null", '{"t":0}'),
        }.items()
        for text in texts
    ),
    BadOffset(
        "state.members",
        _offset("{}", "{}", '{"members":[{"generation":"1","partitions":{}}]}'),
    ),
    BadOffset("state.warm_up", _offset('{"orders":{"0":[1,2]}}', "{}", '{"warm_up":1}')),
    BadOffset("state.initial", _offset('{"orders":{"0":[1,2]}}', "{}", '{"initial":{}}')),
    BadOffset("colour", _offset("{}", "{}", '{"colour":"red"}')),
]
