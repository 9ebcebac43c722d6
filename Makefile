# make            builds ./run
# make test       builds and runs the tests; GOLDEN=DIR adds the larger reference data
# make asan       the same under AddressSanitizer and UBSan
# make tsan       the threads' tests under ThreadSanitizer
# make fuzz       every parser on mutated input, FUZZ_SECONDS each
# make static     ./run without shared libraries
# make install    into PREFIX (/usr/local), below DESTDIR; uninstall takes it away
# make clean      removes what was built

CC ?= cc
PREFIX ?= /usr/local
BUILD ?= build
BIN ?= run
FUZZ_SECONDS ?= 10
WARNINGS = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
FLAGS = -std=c11 -O3 -g -ffp-contract=off -D_GNU_SOURCE $(WARNINGS) $(EXTRA) $(CFLAGS)
LIBS = -lm -lpthread

ROOMS = $(filter-out run.c,$(wildcard *.c))
PROGRAM = run.c $(wildcard commands/*.c)
OBJECTS = $(patsubst %.c,$(BUILD)/%.o,$(ROOMS) $(PROGRAM))
ROOM_OBJECTS = $(patsubst %.c,$(BUILD)/%.o,$(ROOMS))
TESTS = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))

all: $(BIN)

$(BIN): $(OBJECTS)
	$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(ROOM_OBJECTS)
	$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

-include $(OBJECTS:.o=.d) $(TESTS:=.d)

test: $(BIN) $(TESTS)
	RUN=./$(BIN) tests/all.sh $(TESTS)

asan:
	$(MAKE) BUILD=build-asan BIN=run-asan EXTRA="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" test

tsan:
	$(MAKE) BUILD=build-tsan BIN=run-tsan EXTRA="-O1 -fsanitize=thread" TESTS="build-tsan/tests/test_threads build-tsan/tests/test_net" test

static:
	$(MAKE) BUILD=build-static LDFLAGS=-static

install: $(BIN)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/run/demo
	install $(BIN) $(DESTDIR)$(PREFIX)/bin/run
	install -m 644 $(wildcard tests/demo/*.json) tests/demo/model.safetensors $(DESTDIR)$(PREFIX)/share/run/demo

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/run
	rm -rf $(DESTDIR)$(PREFIX)/share/run

clean:
	rm -rf build build-* run run-*

help:
	@sed -n 's/^# //p' Makefile

.PHONY: all test asan tsan fuzz static install uninstall clean help
.SECONDARY:
