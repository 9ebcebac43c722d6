# make            builds ./run
# make test       builds and runs the tests; GOLDEN=DIR adds the larger reference data
# make asan       the same under AddressSanitizer and UBSan
# make help       all targets

CC ?= cc
PREFIX ?= /usr/local
BUILD ?= build
WARNINGS = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
FLAGS = -std=c11 -O3 -g -ffp-contract=off -D_GNU_SOURCE $(WARNINGS) $(EXTRA) $(CFLAGS)
LIBS = -lm -lpthread

ROOMS = $(filter-out run.c,$(wildcard *.c))
PROGRAM = run.c $(wildcard commands/*.c)
OBJECTS = $(patsubst %.c,$(BUILD)/%.o,$(ROOMS) $(PROGRAM))
ROOM_OBJECTS = $(patsubst %.c,$(BUILD)/%.o,$(ROOMS))
TESTS = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))

all: run

run: $(OBJECTS)
	$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(ROOM_OBJECTS)
	$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

-include $(OBJECTS:.o=.d) $(TESTS:=.d)

.PHONY: all
.SECONDARY:
