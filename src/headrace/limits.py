"""Every limit has a name and a reason. Sizes in bytes, spans in nanoseconds."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_NS: Final = 1_000_000_000
MILLISECOND_NS: Final = 1_000_000

# -- message (3-semantics §1: the numbers every door enforces) ---------------------------------------------------------
NAME_BYTES_MAX: Final = 255
"""A namespace, topic or group name."""
KEY_BYTES_MAX: Final = 1 * KIB
"""A key is hashed and compared, never stored as a document."""
HEADERS_BYTES_MAX: Final = 64 * KIB
"""All headers of one message together, names included."""
DEDUP_ID_BYTES_MAX: Final = 256
"""A deduplication id is kept in memory for its whole window."""
MESSAGE_BYTES_DEFAULT: Final = 1 * MIB
"""`max_message_size` of a topic that does not say."""
MESSAGE_BYTES_MAX: Final = 64 * MIB
"""The highest `max_message_size` that may be configured: one message must fit a frame and a reply buffer."""
PRIORITY_MAX: Final = 9
"""Lanes 0–9, lower is first."""

# -- batch ------------------------------------------------------------------------------------------------------------
BATCH_MESSAGES_MAX: Final = 4096
"""A batch's ids are contiguous inside one millisecond's 12-bit id sequence."""
BATCH_BYTES_MAX: Final = 64 * MIB + 256 * KIB
"""One message of the highest size with its key, headers and overhead."""
HEADERS_MAX: Final = 1024
"""Headers of one message: each is a Python object when read, and 64 KiB of empty ones would be 32,768."""
OFFSET_MAX: Final = (1 << 63) - 1
"""Offsets fit into a signed 64-bit number, in every file and on every wire."""
TIME_NS_MAX: Final = (1 << 62) - 1
"""The last instant that can be stored, in 2116; an instant plus a span still fits 63 bits."""
SPAN_NS_MAX: Final = (1 << 61) - 1
"""The longest delay or ttl, 73 years."""

# -- routing ----------------------------------------------------------------------------------------------------------
TOPIC_BYTES_MAX: Final = 65_535
"""What MQTT's two-byte length can say [MQTT-4.7.3-3]."""
TOPIC_LEVELS_MAX: Final = 128
"""Each level is one step of every match and one node of the trie; real hierarchies have fewer than twenty."""
MATCH_CACHE_TOPICS_MAX: Final = 4096
"""Topics whose subscribers are remembered between changes."""
MATCH_CACHE_SUBSCRIBERS_MAX: Final = 262_144
"""Subscribers held by all remembered answers together: about 2 MB of references."""
GROUP_FILTER_TESTS_MAX: Final = 32
"""Headers one group filter may test: it runs once a message."""
GROUP_FILTER_VALUES_MAX: Final = 1024
"""Values of one `in` list."""
GROUP_FILTER_VALUE_BYTES_MAX: Final = 4 * KIB
"""One value a group filter compares with."""
TOPIC_PATTERNS_MAX: Final = 256
"""Patterns of one token or access rule: each is tried on a miss."""

# -- mqtt -------------------------------------------------------------------------------------------------------------
MQTT_CONNECT_BYTES_MAX: Final = 64 * KIB
"""The first packet, from a peer nobody knows yet: what 2,000 half-sent ones may cost is 128 MB."""
MQTT_PACKET_BYTES_MAX: Final = 1 * MIB + 128 * KIB
"""A message of the default size with its topic and properties; raise it together with `max_message_size`."""
MQTT_USER_PROPERTIES_MAX: Final = 128
"""User properties of one packet: thousands of tiny ones cost CPU, not bytes."""
MQTT_USER_PROPERTIES_BYTES_MAX: Final = 64 * KIB
"""All user properties of one packet together: they become a message's headers."""
MQTT_FILTERS_MAX: Final = 1024
"""Topic filters of one SUBSCRIBE or UNSUBSCRIBE."""
MQTT_CONNECT_DEADLINE_NS: Final = 10 * SECOND_NS
"""From the accepted socket to a whole CONNECT, however it drips."""
MQTT_PACKET_GRACE_NS: Final = 60 * SECOND_NS
"""A packet that has begun must end: this long, and its length at the slowest rate below."""
MQTT_PACKET_RATE_MIN: Final = 4 * KIB
"""Bytes a second below which a half-sent packet is given up: slower than a 2G link."""
MQTT_RECEIVE_MAXIMUM: Final = 1024
"""QoS 1 and 2 publishes a client may have unacknowledged: what a group commit gathers from one fast client."""
MQTT_INFLIGHT_MAX: Final = 1024
"""QoS 1 and 2 messages we have unacknowledged at one client, whatever it would take."""
MQTT_TOPIC_ALIASES_IN_MAX: Final = 64
"""Topic names a client may make us remember for its connection."""
MQTT_TOPIC_ALIASES_OUT_MAX: Final = 16
"""Topic names we abbreviate for a client that allows it: each costs a lookup a message."""
MQTT_QUEUE_MESSAGES_MAX: Final = 10_000
"""Messages waiting for one slow client's window."""
MQTT_QUEUE_BYTES_MAX: Final = 8 * MIB
"""Their payloads and topics together."""
MQTT_OUTGOING_BYTES_MAX: Final = 4 * MIB
"""Encoded and not yet taken by the socket; above it QoS 0 is dropped and QoS 1 and 2 wait."""
MQTT_REQUESTS_MAX: Final = 64
"""SUBSCRIBE and UNSUBSCRIBE packets waiting for the broker's answer; above it we stop reading that client."""
MQTT_HELD_BYTES_MAX: Final = 256 * KIB
"""Bytes taken from a client after we asked the shell to stop reading it."""

MQTT_SESSIONS_MAX: Final = 100_000
"""Sessions, connected or waiting for their client: each client id is one."""
MQTT_SESSION_EXPIRY_S_MAX: Final = 7 * 86_400
"""The longest a session waits for its client: what is kept for it costs room for all of that time."""
MQTT_SUBSCRIPTIONS_MAX: Final = 20_000
"""Topic filters of one session."""
MQTT_RETAINED_MESSAGES_MAX: Final = 200_000
"""Topics with a retained message: each is a node of a tree in memory."""
MQTT_RETAINED_BYTES_MAX: Final = 256 * MIB
"""Their payloads and topics together."""
MQTT_KEPT_BYTES_MAX: Final = 512 * MIB
"""Messages kept for sessions and shared subscriptions, all together; above it what does not fit is dropped."""
MQTT_LEDGER_FACTS_MAX: Final = 1_000
"""Facts of sessions in one frame of their journal; a busier round makes several frames."""
MQTT_LEDGER_FRAME_BYTES: Final = 8 * MIB
"""And their messages; the next frame begins above it. A single fact is one packet at most."""
MQTT_LEDGER_FILE_BYTES: Final = 16 * MIB
"""A file of that journal, which is preallocated, one in reserve: most servers keep few sessions."""
MQTT_LEDGER_SNAPSHOT_BYTES: Final = 32 * MIB
"""Written between two snapshots of the sessions, at least: bounds what a start has to read."""
MQTT_PASSWORDS_CHECKED_MAX: Final = 64
"""CONNECTs whose password is being checked or waits for it: each check takes tens of milliseconds on purpose."""
MQTT_PASSWORDS_REMEMBERED_MAX: Final = 10_000
"""Passwords that were right, remembered by a keyed hash, so that a fleet that reconnects is let in at once."""
USERS_MAX: Final = 10_000
"""Entries of a password file."""
PASSWORD_BYTES_MAX: Final = 1_024
"""One password; longer ones are refused before they are hashed."""
USERS_FILE_BYTES_MAX: Final = 16 * MIB
"""A password file; anything larger is another file given by mistake."""
WEBSOCKET_FRAME_BYTES_MAX: Final = 2 * MIB
"""One message of a WebSocket: more than the largest MQTT packet; packets may be split over messages anyway."""
MQTT_WRITE_BYTES_HIGH: Final = 128 * KIB
"""Written and not yet taken by one subscriber's socket; above it its session collects, and drops by its own limits."""
MQTT_WRITE_BYTES_LOW: Final = 32 * KIB
"""Below it the session's output is taken again."""
MQTT_BATCH_BYTES: Final = 4 * MIB
"""Values of one batch that is gathered from publishes to a queue; beyond it a round makes several."""
MQTT_PREFETCH_DEFAULT: Final = 100
"""Deliveries of a queue that a client without a receive maximum may hold unsettled."""
MQTT_QUEUES_MAX: Final = 256
"""Queues one connection may consume."""
MQTT_SWEEP_NS: Final = 500 * MILLISECOND_NS
"""Between two looks for leases that are over, and for figures that are due."""
MQTT_STATS_INTERVAL_NS: Final = 5 * SECOND_NS
"""Between two messages of a subscription to $admin/queue/<topic>/stats that does not say."""
MQTT_TIMER_GRAIN_NS: Final = 20 * MILLISECOND_NS
"""Deadlines of all connections share one timer that fires at most so often."""

# -- http -------------------------------------------------------------------------------------------------------------
HTTP_HEAD_BYTES_MAX: Final = 32 * KIB
"""Request line and headers: a token of a few KiB and what browsers send fit."""
HTTP_HEADERS_MAX: Final = 100
"""Headers of one request: each is a Python object."""
HTTP_BODY_BYTES_DEFAULT: Final = 16 * MIB
"""One request, before and after it is inflated: a full batch of 2 KiB messages in base64."""
HTTP_BODY_BYTES_MAX: Final = 128 * MIB
"""The highest body limit that may be configured: the largest message in base64, with room."""
HTTP_BODIES_BYTES_MAX: Final = 256 * MIB
"""Bodies that are being received, over all connections; above it requests are told to come back."""
HTTP_REQUEST_RATE_MIN: Final = 16 * KIB
"""Bytes a second a request must manage once its grace is over."""
HTTP_HEAD_TIMEOUT_NS: Final = 9 * SECOND_NS
"""From a connection's first byte, or from the connection itself, to the end of a request's headers. With the second
between two looks whoever drips or says nothing is gone within ten."""
HTTP_DISCARD_BYTES_MAX: Final = 64 * KIB
"""Of a refused request's body, read and thrown away so that the connection can go on; a longer one ends it."""
HTTP_QUERY_FIELDS_MAX: Final = 64
"""Fields behind the question mark."""
HTTP_INFLATE_RATIO_MAX: Final = 200
"""How many times its compressed size a body may have; batches of equal messages manage fifty."""
HTTP_INFLATE_FREE_BYTES: Final = 1 * MIB
"""Inflated before the ratio is looked at."""
HTTP_INFLATE_STEP_BYTES: Final = 256 * KIB
"""Inflated at a time: what a bomb can take beyond the limit."""
HTTP_PLACES_CACHED: Final = 4_096
"""Paths whose route is remembered."""
HTTP_HANDED_OUT_MAX: Final = 100_000
"""Deliveries of GET /dequeue remembered by id, so that POST /ack need not search; the oldest is forgotten first."""
HTTP_SWEEP_NS: Final = SECOND_NS
"""Between two looks for requests that drip and connections that idle: one timer for all of them."""
HTTP_PIPELINE_MAX: Final = 32
"""Requests sent ahead on one connection; more than any client that waits for answers."""
HTTP_MESSAGES_MAX: Final = BATCH_MESSAGES_MAX
"""Messages in one publish: a request is one batch, stored whole or not at all."""
HTTP_LEASE_MESSAGES_MAX: Final = 10_000
"""Messages one lease may ask for: some 5 MB of JSON."""
HTTP_LEASE_BYTES: Final = 8 * MIB
"""Of messages in one answer to a lease; what is left stays ready. A single larger message still comes."""
HTTP_PAGE_MESSAGES: Final = 100
"""Messages of a page whose request does not say."""
HTTP_STREAMS_MAX: Final = 256
"""Endless and long answers under way: replays, events."""
HTTP_STREAM_BYTES: Final = 256 * KIB
"""Of a replay, handed to the socket in one piece."""
HTTP_EVENTS_HEARTBEAT_NS: Final = 15 * SECOND_NS
"""Between two signs of life of an event stream: common proxies cut after thirty seconds of silence."""
HTTP_EVENTS_LOOK_NS: Final = 3 * SECOND_NS
"""Between two looks of an event stream for leases that ran out, or were settled through another door."""
HTTP_STATS_INTERVAL_NS_MIN: Final = SECOND_NS // 4
"""Between two events of live numbers."""
HTTP_EVENTS_CREDIT_MAX: Final = 1_000
"""Messages pushed to one event stream and not yet settled."""

# -- limits of keys ---------------------------------------------------------------------------------------------------
KEY_RATES_MAX: Final = 100_000
"""Keys of a group whose rate is remembered before those that are idle are forgotten: some 300 bytes each."""
KEY_LOOK_MESSAGES: Final = 4_096
"""Ready messages looked at together for limits of their keys."""

# -- delivery ---------------------------------------------------------------------------------------------------------
PRODUCERS_MAX: Final = 10_000
"""Producers whose repetitions a partition recognises; the one quiet for longest is forgotten first."""
PRODUCER_BATCHES_KEPT: Final = 32
"""Batches of one producer and partition that can still be repeated: more than any client has in flight."""
TICK_WORK_MAX: Final = 8_192
"""Due things handled in one tick: some ten milliseconds, so that callers are never kept waiting for a flood."""
STORAGE_RETRY_NS: Final = SECOND_NS
"""Until dead letters that a full disk had no room for are tried again: soon after there is room, and no busy loop."""
EXAMINE_CHUNK: Final = 512
"""Keys looked at in one go when a group looks for messages whose key is free."""
ERROR_TEXT_CHARS_MAX: Final = 1_024
"""Of an error text given with a nack: enough for the line that matters, kept with every attempt."""
SETTLE_ENTRIES_MAX: Final = 100_000
"""Receipt runs in one settle call: one record must stay a modest frame."""
PAUSE_TEXT_CHARS_MAX: Final = 256
"""Who paused a group, and why."""
GROUPS_PER_TOPIC_MAX: Final = 1_000
"""Every publish touches every group's backlog."""
CONSUMERS_PER_GROUP_MAX: Final = 10_000
"""Members of one group."""

# -- native protocol (docs/reference/native-protocol.md; wire.native.Limits takes its defaults here) -------------------
NATIVE_HELLO_BYTES_MAX: Final = 16 * KIB
"""A frame of a peer that has not been let in: a token and a few names fit, a flood does not."""
NATIVE_CONTROL_BYTES_MAX: Final = 64 * KIB
"""Frames that carry no batches: four names and a map of options."""
NATIVE_FRAME_BYTES_MIN: Final = 128 * KIB
"""The lowest frame limit either side may announce: every control frame and error text fits."""
NATIVE_FRAME_BYTES_DEFAULT: Final = 8 * MIB
"""A full batch of 2 KiB messages; bounds what half a frame can hold."""
NATIVE_FRAME_BYTES_MAX: Final = BATCH_BYTES_MAX + 256 * KIB
"""The highest frame limit that may be configured: the biggest batch with its receipts."""
NATIVE_ARGUMENTS_BYTES_MAX: Final = 1 * MIB
"""MessagePack of a CALL: decoded it may be fifty times as large."""
NATIVE_ATTACHMENTS_MAX: Final = 65_535
"""Buffers behind one CALL or RESULT: each is a Python object."""
NATIVE_TEXT_BYTES_MAX: Final = 4 * KIB
"""An error text, kept with the attempt and in logs."""
NATIVE_REQUESTS_MAX: Final = 1024
"""Requests of one connection that may wait for a reply."""
NATIVE_REQUEST_BYTES_MAX: Final = 32 * MIB
"""Bytes of waiting requests of one connection; above it the server stops reading: that slows, and refuses nothing."""
NATIVE_SUBSCRIPTIONS_MAX: Final = 256
"""Subscriptions of one connection."""
NATIVE_CREDIT_MESSAGES_MAX: Final = 65_536
"""Messages that may be pushed to a subscription and wait in its client."""
NATIVE_CREDIT_BYTES_MAX: Final = 64 * MIB
"""Batch bytes that may be pushed to a subscription and wait in its client."""
NATIVE_SETTLE_MESSAGES_MAX: Final = 1 << 20
"""Messages one SETTLE may name: a run is 24 bytes however many it claims."""
NATIVE_RUNS_MAX: Final = 65_536
"""Runs in one frame, and ids one CANCEL may name: each becomes Python objects ten times its size."""
NATIVE_HELLO_TIMEOUT_NS: Final = 5 * SECOND_NS
"""From connection to WELCOME."""
NATIVE_HEARTBEAT_NS: Final = 10 * SECOND_NS
"""Silence before a PING; two and a half of them and the peer is gone."""
NATIVE_HEARTBEAT_NS_MIN: Final = 1 * SECOND_NS
"""The shortest span a client may ask for."""
NATIVE_HEARTBEAT_NS_MAX: Final = 300 * SECOND_NS
"""The longest span a client may ask for: common firewalls forget a silent connection after five minutes."""
NATIVE_FRAME_TIMEOUT_NS: Final = 30 * SECOND_NS
"""For a frame that has begun, plus its length at the rate below."""
NATIVE_FRAME_RATE_MIN: Final = 16 * KIB
"""Bytes per second a peer must manage inside a frame; slower is dripping."""

# -- front-ends -------------------------------------------------------------------------------------------------------
LISTEN_BACKLOG: Final = 1024
"""Connections the kernel keeps for us between two rounds of the loop."""
ALERT_GATHER_NS: Final = SECOND_NS
"""Deaths of one second are one alert."""
ALERT_MESSAGES_MAX: Final = 20
"""Messages an alert shows of one topic and group; all are counted."""
ALERT_GROUPS_MAX: Final = 100
"""Topics and groups one alert shows."""
ALERT_ADDRESSES_MAX: Final = 1_000
"""Addresses that alerts wait for: the topics of one server share a few."""
ALERT_ERROR_CHARS: Final = 500
"""Of the error text of a dead message."""
ALERT_TIMEOUT_NS: Final = 10 * SECOND_NS
"""For an alert to be taken."""
ALERT_TRIES: Final = 10
"""With the waits below some 17 minutes."""
ALERT_BACKOFF_NS: Final = 2 * SECOND_NS
"""After the first failure; doubled each time."""
ALERT_BACKOFF_MAX_NS: Final = 300 * SECOND_NS
"""The longest wait between two tries."""
ALERT_LAST_NS: Final = 2 * SECOND_NS
"""At a stop, for what has not been told yet."""
SPAN_LINKS_MAX: Final = 32
"""Messages of a batch whose trace context is looked at: each is a few µs and a line in the collector."""
METRICS_GROUPS_MAX: Final = 5_000
"""Groups shown one by one: some 25 lines each; those after them are summed up."""
METRICS_PORTION_GROUPS: Final = 25
"""Topics looked at before the loop may do something else: a millisecond or two."""
TOKEN_BYTES_MAX: Final = 8 * KIB
"""A token is read before anybody is known: what fits a header line."""
TOKENS_REMEMBERED_MAX: Final = 4096
"""Tokens whose check is not repeated: each costs 30 to 140 µs to check and some 2 KB to remember."""
TOKEN_GRANTS_MAX: Final = 64
"""Grants of one token: looked through at each thing its owner asks."""
KEYS_MAX: Final = 64
"""Keys tokens may be signed with at a time: a few are current, the rest forgotten."""
KEY_FILE_BYTES_MAX: Final = 256 * KIB
"""A file of keys: 64 RSA keys with their private halves and room."""
KEY_ID_CHARACTERS_MAX: Final = 128
"""The name of a key, which stands in every token."""
SECRET_BYTES_MIN: Final = 32
"""A shared secret as long as the hash it feeds [RFC 7518 §3.2]."""
RSA_BITS_MIN: Final = 2048
"""[RFC 7518 §3.3]."""
CONNECTIONS_MAX: Final = 10_000
"""Connections of one door; each further one is told `overloaded` and closed."""
DESCRIPTORS_KEPT: Final = 128
"""File descriptors left for the journal, segments and listeners when the connections take all they may."""
BEGUN_FRAMES_BYTES_MAX: Final = 256 * MIB
"""Frames that are not whole, over all connections of a door: four of the largest; above it the oldest is cut."""
WRITE_BYTES_HIGH: Final = 1 * MIB
"""Written and not yet taken by the peer: above it the connection is not read and gets no pushes."""
WRITE_BYTES_LOW: Final = 256 * KIB
"""Below it both go on."""
COALESCE_BYTES_MAX: Final = 64 * KIB
"""Answers of one round are joined into one buffer up to this; above it copying costs more than a longer list."""
PUSH_PORTION_BYTES: Final = 512 * KIB
"""What a subscription should get in one push: large enough to be cheap, small enough to stop soon."""
PUSH_PORTION_MESSAGES: Final = 64
"""The first push, before we know how large the messages are."""
PUSH_PORTION_MESSAGES_MAX: Final = 4096
"""The largest push, however small the messages are."""
LEASE_BYTES_DEFAULT: Final = 1 * MIB
"""A pull that leaves the bytes to us."""
LEASES_BYTES_MAX: Final = 64 * MIB
"""What the pulls of one connection under way may bring together; further ones wait for their turn."""
CALLS_MAX: Final = 8
"""Administrative calls of one connection under way; further ones wait for their turn."""
WAIT_NS_MAX: Final = 300 * SECOND_NS
"""The longest a pull may wait for its first message; a client asks again."""
CLOSE_FLUSH_NS: Final = SECOND_NS
"""For the last bytes of a connection that is being closed."""

# -- journal ----------------------------------------------------------------------------------------------------------
JOURNAL_FILE_BYTES_DEFAULT: Final = 64 * MIB
"""One journal file: large enough that its creation (two syncs) does not show, small enough to be dropped soon."""
JOURNAL_FILE_BYTES_MIN: Final = 4 * KIB
"""One page: below it a file is all header."""
JOURNAL_FILE_ROOM_FRACTION: Final = 8
"""A new journal file takes at most this part of the room left, so that a small disk holds several."""
JOURNAL_FILE_ROOM_BYTES_MIN: Final = 1 * MIB
"""But not less than this: smaller files would be all renames."""
CLOCK_LOOK_NS: Final = SECOND_NS
"""Between two looks of a server at whether its wall clock was set."""
CLOCK_JUMP_NS: Final = SECOND_NS
"""What counts as set: a clock that is only slewed moves by some 0.5 ms in a second."""
JOURNAL_SPARES_MAX: Final = 2
"""Preallocated files kept: the reserve for a full disk, and the next file."""
JOURNAL_FRAME_BYTES_MAX: Final = 128 * MIB
"""One frame's body: the biggest batch with its facts fits twice."""
JOURNAL_POSITION_MAX: Final = (1 << 56) - 1
"""A position shares eight bytes with the frame's kind: 72 PB, two years at a gigabyte a second."""
JOURNAL_COPY_BYTES_MAX: Final = 16 * KIB
"""Bodies up to this are copied into one buffer for the write; copying more costs more than another buffer."""
JOURNAL_SCAN_BYTES: Final = 1 * MIB
"""Read in one go by recovery: stays in the processor's cache while its frames are checked."""
JOURNAL_PEEK_BYTES: Final = 512
"""Read first by a random access: a small message in one call; zeroing a larger buffer costs more than a second read."""

# -- settings ---------------------------------------------------------------------------------------------------------
CONFIG_FILE_BYTES_MAX: Final = 1 * MIB
"""A configuration file; anything larger is another file given by mistake."""
SETTINGS_DEPTH_MAX: Final = 8
"""Sections inside sections; an alias that contains itself ends here."""
SETTING_TEXT_CHARS_MAX: Final = 4_096
"""One value: a path or an address."""
SETTING_PROBLEMS_SHOWN_MAX: Final = 10
"""Problems of one configuration told at once; more would scroll the first away."""
SETTING_COUNT_MAX: Final = 1_000_000_000_000
"""Counts and rates: far above any use, far below where sums of them overflow 64 bits."""
DURATION_NS_MAX: Final = 100 * 366 * 86_400 * SECOND_NS
"""A century: now plus the longest span stays inside 64 bits until 2162."""
PARTITIONS_MAX: Final = 1_024
"""Partitions of a topic: each has a log and the state of each group; a queue needs one."""
CONSUMER_NAME_BYTES_MAX: Final = 255
"""A consumer's name is written with every lease."""
HANDOVER_NS: Final = SECOND_NS
"""How long a moved partition waits for its former owner's leases."""
MEMBER_SILENCE_NS: Final = 30 * SECOND_NS
"""A member of a partition-ordered group that holds nothing and asks for nothing for this long has left."""

# -- shard ------------------------------------------------------------------------------------------------------------
PLAIN_FACTS_KEPT: Final = 1024
"""Encoded facts of single values kept by partition and size: a producer's messages are often alike."""
HOT_TAIL_BYTES: Final = 32 * MIB
"""Batches kept decoded, newest first, over all partitions of a shard; older ones are read from the journal."""
SNAPSHOT_EVERY_BYTES: Final = 64 * MIB
"""Journal written between two snapshots: bounds what recovery has to fold."""
UNDURABLE_BYTES_MAX: Final = 64 * MIB
"""Appended and not yet synced: beyond it callers are told to wait, so that a slow disk cannot fill the memory."""
UNDURABLE_BYTES_HIGH: Final = 16 * MIB
"""Appended and not yet synced: above it doors stop reading, which slows down instead of refusing; ten syncs' worth."""
PENDING_REPLIES_HIGH: Final = 50_000
"""The same for calls whose replies wait."""
PENDING_REPLIES_MAX: Final = 100_000
"""Calls whose replies wait for a sync."""
COMMIT_HERE_NS_MAX: Final = MILLISECOND_NS
"""A sync this quick is not handed to another thread when only one caller waits for it."""
COMMIT_HERE_BYTES_MAX: Final = 256 * KIB
"""And only when it has so little to write that the write itself does not keep others waiting."""
COMMIT_ELSEWHERE_ROUNDS: Final = 20
"""After a slower one: rounds that go to the thread before it is tried again."""
LEASE_MESSAGES_MAX: Final = 100_000
"""Messages in one lease grant, and in one receipt."""

# -- broker -----------------------------------------------------------------------------------------------------------
PREFETCH_MAX: Final = 10_000
"""Messages one consumer may hold unsettled through its prefetch or one receive."""
BROWSE_MESSAGES_MAX: Final = 10_000
"""Messages in one answer of a listing."""
READ_BYTES_MAX: Final = 4 * MIB
"""Of one answer to a read of the log; the caller goes on from where it ends."""
PRODUCERS_ASKED_MAX: Final = 64
"""Producers whose last sequences one call tells."""
READ_BATCHES_MAX: Final = 1_000
"""Batches in one answer to a read of the log."""

# -- client -----------------------------------------------------------------------------------------------------------
CLIENT_BATCH_BYTES: Final = 4 * MIB
"""Values of one batch that a client makes: half the default frame, so that every server takes it."""
CLIENT_PREFETCH_DEFAULT: Final = 16
"""Messages a loop over a consumer holds at a time: hides a round trip, and keeps few from other consumers."""
CLIENT_PREFETCH_GROWN: Final = 512
"""What a loop with a quick handler asks for at a time: more would not be cheaper, and wait longer."""
CLIENT_APPETITE_NS: Final = 10 * MILLISECOND_NS
"""A handler that is through with what it got within this is given more at a time."""
CLIENT_SETTLE_LINGER_NS: Final = 10 * MILLISECOND_NS
"""How long a single ack may wait for others to travel with."""
CLIENT_SETTLE_PENDING_MAX: Final = 1_000
"""Acks gathered before they are sent in any case."""
CLIENT_IDLE_NS: Final = SECOND_NS
"""What a program has not asked for within this (or a third of its lease) is given back: much longer than handlers that
get more than one message at a time take, and short enough that nobody waits for a program that does something else."""
HELD_RUNS_MAX: Final = 1_024
"""Runs a consumer names as still held when it comes back: 30 KB of the 64 that a CONSUME may have. One that holds more
names none, and nothing is given back for it."""
CLIENT_ROUND_NS: Final = SECOND_NS
"""One wait for messages inside a longer one, so that a close or a signal is noticed."""
CLIENT_PUBLISHER_LINGER_NS: Final = MILLISECOND_NS
"""How long a pipelined publish may wait for others, when nothing else is under way."""
CLIENT_PUBLISHER_MESSAGES_MAX: Final = 20_000
"""Pipelined publishes not yet confirmed; beyond it the publisher waits."""
CLIENT_PUBLISHER_BYTES_MAX: Final = 32 * MIB
"""Their values together."""
CLIENT_GATHER_MESSAGES: Final = 1_000
"""Pipelined publishes that leave as one batch: more would not be cheaper, and wait longer."""
CLIENT_GATHER_BYTES: Final = 512 * KIB
"""Their values together."""
CLIENT_GATHER_ALONE_BYTES: Final = 64 * KIB
"""A value above it leaves in a batch of its own: it gains nothing from company, and one too large fails alone."""
CLIENT_REQUESTS_TTL_NS: Final = 3_600 * SECOND_NS
"""How long an answer that nobody fetched is kept."""
CLIENT_CREDIT_BYTES: Final = 16 * MIB
"""What one consumer lets the server push ahead; its credit in messages is its prefetch."""
CLIENT_OVERLOADED_NS: Final = 100 * MILLISECOND_NS
"""Before a request is sent again to a server that had no room for it and did not say when it will."""
CLIENT_GOODBYE_NS: Final = 2 * SECOND_NS
"""For the last bytes of a client that closes."""
CLIENT_PARKED_NS: Final = 50 * MILLISECOND_NS
"""How long a network client's thread leaves its socket to callers who wait: what the server says unasked (a heartbeat,
its end) is read that much later, and a caller who comes back within it needs no switch between threads."""
CLIENT_LEAD_NS: Final = 250 * MILLISECOND_NS
"""How often a caller who reads for itself looks whether it is still its turn: a server that is frozen says nothing."""
CLIENT_RECEIVE_BYTES: Final = 256 * KIB
"""Read from a socket at a time."""
CLIENT_WINDOW: Final = 8
"""Batches of one publish_many or publisher under way at a time: fills the wire while the disk syncs."""
CLIENT_PRODUCER_WINDOW: Final = 24
"""Batches of one producer id under way; below PRODUCER_BATCHES_KEPT, so that each can still be repeated."""
CLIENT_CONNECT_TIMEOUT_NS: Final = 10 * SECOND_NS
"""For the first connection; a name that does not resolve or a closed port should be told soon."""
CLIENT_RECONNECT_NS: Final = 50 * MILLISECOND_NS
"""The first pause before connecting again; it doubles."""
CLIENT_RECONNECT_NS_MAX: Final = 2 * SECOND_NS
"""The longest pause before connecting again."""
CLIENT_BREAKS_ALONE: Final = 2
"""Breaks of the connection after which a request that was under way is asked with nothing beside it: once is chance."""
CLIENT_BREAKS_MAX: Final = 5
"""Breaks while one request is under way, with nothing else answered in between, until it fails: two to suspect it,
three with it alone; a server that is killed and comes back is given four chances."""
CLIENT_BREAKS_IN_ALL_MAX: Final = 20
"""The same whatever else is answered: a network that is that bad answers a request sooner."""
CLIENT_OUTAGE_NS_MAX: Final = 120 * SECOND_NS
"""How long requests wait for a server that is gone before they fail."""
WORKER_CONCURRENCY_MAX: Final = 10_000
"""Threads or tasks of one worker."""
CLIENT_WORKER_STOP_NS: Final = 30 * SECOND_NS
"""What handlers under way get when a worker is asked to stop."""

# -- log --------------------------------------------------------------------------------------------------------------
INDEX_EXACT_ENTRIES: Final = 8_192
"""Newest batches of a partition with an index entry of their own; older ones share one a stride."""
INDEX_STRIDE_BYTES: Final = 16 * KIB
"""Journal between two old index entries: reading that much finds any batch in a fraction of a millisecond."""
RECENT_BLOCK_BYTES: Final = 32 * KIB
"""Journal that a trace reads at a time: some 500 small frames, a millisecond."""
RECENT_STRETCHES_MAX: Final = 200_000
"""Stretches of offsets remembered with the blocks they occur in: about 15 MB; older blocks are read without looking."""
COLD_CACHE_BYTES: Final = 64 * MIB
"""Row groups of sealed files kept decoded, those used last."""
COLD_FOOTERS_MAX: Final = 1_024
"""Footers of sealed files kept: some kilobytes each."""
ROW_GROUP_ROWS: Final = 32_768
"""Messages of a row group: decoding one to find its first message takes some 20 ms."""
ROW_GROUP_BYTES: Final = 16 * MIB
"""Values of a row group, where messages are large."""
EVENT_GROUP_ROWS: Final = 32_768
"""Rows of a row group of events."""
SEAL_BUFFER_BYTES: Final = 64 * MIB
"""Batches gathered over all partitions while a journal file is sealed; the fullest partition is written beyond it."""
SEAL_BEHIND_BYTES: Final = 64 * MIB
"""Journal left unsealed behind the end: what was published a moment ago is often acked and let go of a moment later."""
SEAL_SHARE: Final = 0.5
"""Part of one core that sealing takes while it runs in the background."""
SEAL_DOOMED_NS: Final = 5 * 60 * SECOND_NS
"""How long a file that is no longer live is left for those who began to read it."""
SEAL_RETRY_NS: Final = 50 * MILLISECOND_NS
"""Before the shard is asked again when it has too much to do."""
RETAIN_TOPICS_A_TURN: Final = 100
"""Topics whose retention is looked after before others have their turn: about a millisecond."""
SMALL_MESSAGE_BATCH: Final = 16
"""Batches below this many messages are sealed row by row: Arrow's cost a batch would be the larger one."""
COMPACT_BELOW_BYTES: Final = 8 * MIB
"""Sealed files smaller than this are put together; what a full journal file of text becomes is larger, and is written
once."""
COMPACT_TO_BYTES: Final = 128 * MIB
"""The size such a file grows to: what Spark reads as one task."""
COMPACT_FILES_MIN: Final = 4
"""Neighbours worth being put together."""
CARRIED_ATTEMPTS_MAX: Final = 10_000
"""Failed attempts remembered from one sealed journal file to the next, for the events' attempt column."""
TRACE_EVENTS_MAX: Final = 10_000
"""Events of one message that a trace shows."""
EVENT_ROWS_MAX: Final = 10_000
"""Facts in one answer to a reader of a topic's history: some megabytes."""
EVENT_OFFSETS_MAX: Final = 200_000
"""Offsets in one such answer, where facts are about many messages with holes between them."""
EVENT_CURSORS_MAX: Final = 16
"""Places in the journal where it is remembered what readers of the history need to know to go on."""

PORTION_MESSAGES: Final = 2_000
"""Messages that an administrative call looks at before others have their turn: some 5 ms."""
PORTION_BATCHES: Final = 500
"""Batches it looks at, where they are small: each may be one read of the journal."""
REDRIVE_PORTION_MESSAGES: Final = 1_000
"""Messages of one redrive record: with the largest default value they fill a frame."""
REDRIVE_PORTION_BYTES: Final = 4 * MIB
"""Values of one redrive record."""
REDRIVE_RATE_MIN: Final = 0.001
"""Messages a second of a redrive: one in a quarter of an hour; what is slower has stopped."""
REDRIVE_RATE_MAX: Final = 1_000_000_000
"""More than any machine does; whoever wants no limit gives none."""
CALL_IDS_MAX: Final = 100_000
"""Ids or runs one administrative call may name: about what the arguments of a native call have room for."""
REPORT_KINDS_MAX: Final = 20
"""Reasons, errors and groups that a report counts by name; the others together."""

# -- Spark -------------------------------------------------------------------------------------------------------------

SPARK_SPLIT_ROWS: Final = 1_000_000
"""Messages that one Spark task reads: a fraction of a second of work, and the most that is read again when it fails."""
SPARK_RECORD_ROWS: Final = 100_000
"""Rows of one Arrow batch handed to Spark: large enough for its costs to vanish, some 20 MB of small messages."""
SPARK_AWAY_NS: Final = 60 * SECOND_NS
"""How long a Spark source waits for a broker that is away before the query fails."""
SPARK_RETRY_NS: Final = 100 * MILLISECOND_NS
"""Between two tries to reach it."""
SPARK_TRIGGER_DELAY_NS: Final = 15 * 60 * SECOND_NS
"""maxTriggerDelay when minOffsetsPerTrigger waits for more."""
SPARK_LEASE_NS: Final = 5 * 60 * SECOND_NS
"""Lease of what a micro-batch of the queue view holds; extended while the query lives."""
SPARK_QUEUE_ROWS: Final = 100_000
"""Messages leased for one micro-batch of the queue view."""
SPARK_RUNS_MAX: Final = 50_000
"""Runs in one offset of the queue view: a megabyte of checkpoint."""
SPARK_IDLE_NS: Final = 50 * MILLISECOND_NS
"""How long a source that has nothing new looks for it before it tells Spark so."""
SPARK_LOOK_NS: Final = 5 * MILLISECOND_NS
"""Between two looks of an idle source."""
