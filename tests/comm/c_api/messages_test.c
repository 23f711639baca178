/* rondo.h's messages with tags, as a C99 program sees them: one rank, which sends itself. What such
 * messages do between ranks is tested in C++. */
#include <string.h>
#include <unistd.h>

#include "rondo/rondo.h"
#include "tests/comm/c_api/expect.h"

enum { kCount = 1000 };

static int32_t out[kCount], in[kCount];

static void prepare(void) {
  for (int i = 0; i < kCount; ++i) {
    out[i] = 7 * i;
    in[i] = -1;
  }
}

/* The first `count` elements have come, and no more. */
static void expect_received(int count, const char* what) {
  for (int i = 0; i < kCount; ++i) expect(in[i] == (i < count ? 7 * i : -1), what);
}

static void probes(rondo_communicator* world) {
  rondo_work* sent = NULL;
  rondo_envelope e;
  int found = 1;
  prepare();
  expect_ok(rondo_try_probe(world, RONDO_ANY_SOURCE, 8, &found, &e, sizeof e), "try_probe");
  expect(found == 0 && e.source == -1, "no message");
  expect_ok(rondo_send_tagged_async(world, out, 10, RONDO_INT32, 0, 8, NULL, &sent), "send");
  expect_ok(rondo_probe(world, RONDO_ANY_SOURCE, RONDO_ANY_TAG, &e, sizeof e, NULL), "probe");
  expect(e.source == 0 && e.tag == 8 && e.count == 10 && e.type == RONDO_INT32, "probe");
  e.count = 0;
  expect_ok(rondo_try_probe(world, 0, 8, &found, &e, sizeof e), "try_probe");
  expect(found == 1 && e.count == 10, "try_probe");
  e.source = 5;
  expect_ok(rondo_recv_tagged(world, in, kCount, RONDO_INT32, 0, 8, &e, sizeof e, NULL), "recv");
  expect(e.source == 0 && e.tag == 8 && e.count == 10, "recv");
  expect_received(10, "recv");
  finish(RONDO_OK, &sent, 1, "send");
}

static void abandoned(rondo_communicator* world) {
  rondo_work* received = NULL;
  rondo_envelope e = {5, 5, 5, RONDO_INT32, 0};
  prepare();
  expect_refused(rondo_group_abandon(world, "early"), "without group_start");
  expect_ok(rondo_group_start(world), "group_start");
  expect_ok(rondo_recv_tagged(world, in, 1, RONDO_INT32, 0, 8, &e, sizeof e, NULL), "recv");
  expect_ok(rondo_recv_tagged_async(world, in, 1, RONDO_INT32, 0, 8, NULL, &received), "recv");
  expect_ok(rondo_group_abandon(world, NULL), "group_abandon");
  expect(e.source == -1, "no message");
  expect_refused(rondo_work_wait(received), "abandoned: no reason given");
  rondo_work_release(received);
  expect_ok(rondo_finish(world), "finish");
  expect_refused(rondo_finish(NULL), "communicator");
  expect_received(0, "nothing");
}

static void works(rondo_communicator* world) {
  rondo_work* begun[4] = {NULL, NULL, NULL, NULL};
  rondo_envelope e;
  size_t index = 9;
  prepare();
  expect_ok(rondo_recv_tagged_async(world, in, kCount, RONDO_INT32, 0, 1, NULL, &begun[1]), "recv");
  expect_ok(rondo_get_work_envelope(begun[1], &e, sizeof e), "envelope");
  expect(e.source == -1, "nothing has been received");
  expect_ok(rondo_recv_tagged_async(world, in, kCount, RONDO_INT32, 0, 2, NULL, &begun[3]), "recv");
  expect_ok(rondo_send_tagged_async(world, out, 30, RONDO_INT32, 0, 2, NULL, &begun[0]), "send");
  finish(RONDO_OK, &begun[0], 1, "send");
  expect_ok(rondo_work_wait_any(begun, 4, &index), "wait_any");
  expect(index == 3, "the one of which the message was sent");
  expect_ok(rondo_get_work_envelope(begun[3], &e, sizeof e), "envelope");
  expect(e.source == 0 && e.tag == 2 && e.count == 30, "envelope");
  expect_received(30, "recv_async");
  expect_ok(rondo_send_tagged_async(world, out, 40, RONDO_INT32, 0, 1, NULL, &begun[2]), "send");
  expect_ok(rondo_work_wait_all(begun, 4), "wait_all");
  expect_received(40, "wait_all");
  for (int i = 0; i < 4; ++i) {
    rondo_work_release(begun[i]);
    begun[i] = NULL;
  }
  expect_ok(rondo_work_wait_any(begun, 4, &index), "wait_any");
  expect(index == 4, "all are null");
  expect_refused(rondo_work_wait_any(NULL, 1, &index), "works is null");
  expect_refused(rondo_work_wait_any(begun, 4, NULL), "index is null");
  expect_refused(rondo_work_wait_all(NULL, 1), "works is null");
}

/* The envelope of a recv in a group is written at its end, of a larger struct the rest is 0. */
static void groups(rondo_communicator* world) {
  struct {
    rondo_envelope known;
    int64_t later;
  } newer;
  prepare();
  memset(&newer, 1, sizeof newer);
  expect_ok(rondo_group_start(world), "group_start");
  expect_ok(rondo_group_start(world), "group_start");
  expect_ok(rondo_recv_tagged(world, in, kCount, RONDO_INT32, RONDO_ANY_SOURCE, RONDO_ANY_TAG,
                              &newer.known, sizeof newer, NULL),
            "recv");
  expect_ok(rondo_group_end(world), "group_end");
  expect(newer.known.source > 1, "nothing before the outermost end");
  expect_ok(rondo_send_tagged(world, out, 20, RONDO_INT32, 0, 3, NULL), "send");
  expect_ok(rondo_group_end(world), "group_end");
  expect(newer.known.source == 0 && newer.known.tag == 3 && newer.known.count == 20, "envelope");
  expect(newer.later == 0, "a field of a newer header");
  expect_received(20, "group_end");
}

/* What an open group holds begins at its end: waiting for it is refused, in every form. */
static void waits_in_a_group(rondo_communicator* world) {
  rondo_work* begun[2] = {NULL, NULL};
  size_t index = 9;
  prepare();
  expect_ok(rondo_group_start(world), "group_start");
  expect_ok(rondo_recv_async(world, in, kCount, RONDO_INT32, 0, NULL, &begun[1]), "recv");
  expect_ok(rondo_send(world, out, kCount, RONDO_INT32, 0, NULL), "send");
  expect_refused(rondo_work_wait(begun[1]), "call group_end() first");
  expect_refused(rondo_work_wait_all(begun, 2), "call group_end() first");
  expect_refused(rondo_work_wait_any(begun, 2, &index), "call group_end() first");
  expect(index == 1, "the one that is not null");
  expect_ok(rondo_group_end(world), "group_end");
  finish(RONDO_OK, &begun[1], 1, "recv");
  expect_received(kCount, "group_end");
}

static void refusals(rondo_communicator* world) {
  rondo_envelope e;
  expect_refused(rondo_send_tagged(world, out, 1, RONDO_INT32, 0, RONDO_MAX_TAG + 1, NULL),
                 "tag 32768");
  expect_refused(rondo_recv_tagged(world, in, 1, RONDO_INT32, 0, 1, &e, sizeof e, NULL),
                 "waits for ever");
  expect(e.source == -1, "nothing was received");
  expect_refused(rondo_recv_tagged(world, in, 1, 99, 0, 1, NULL, 0, NULL), "99");
  expect_refused(rondo_probe(world, 0, 0, NULL, 0, NULL), "envelope is null");
  expect_refused(rondo_probe(NULL, 0, 0, &e, sizeof e, NULL), "null");
  expect_refused(rondo_get_work_envelope(NULL, &e, sizeof e), "null");
}

int main(void) {
  alarm(kLimitSeconds);
  rondo_communicator* world = create_alone();
  probes(world);
  abandoned(world);
  works(world);
  groups(world);
  waits_in_a_group(world);
  refusals(world);
  expect_ok(rondo_status(world), "status");
  rondo_destroy(world);
  return 0;
}
