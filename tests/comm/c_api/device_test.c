/* What rondo.h says of devices: fields that older programs do not have, and what is refused. That
 * the C++ communicator does the rest is tested there. */
#include <stddef.h>
#include <string.h>

#include "rondo/rondo.h"
#include "tests/comm/c_api/expect.h"

int main(void) {
  rondo_communicator* world = NULL;
  rondo_config config;
  rondo_call_options options;

  rondo_config_init(&config, sizeof config);
  expect(config.device == -1, "no device unless it is asked for");
  config.rank = 0;
  config.world_size = 1;
  config.device = -2;
  expect_refused(rondo_create(&world, &config), "Config::device is -2");
  config.device = 4711; /* nobody has so many, and here there may be none at all */
  expect(rondo_create(&world, &config) != RONDO_OK && world == NULL, "a device that is not there");
  config.device = -1;
  config.max_channels = -1;
  expect_refused(rondo_create(&world, &config), "Config::max_channels is -1");
  config.max_channels = 0;
  config.reserved_last = 1;
  expect(rondo_create(&world, &config) == RONDO_INVALID_ARGUMENT, "what is reserved");

  /* A program of before there were devices. */
  memset(&config, 0, sizeof config);
  rondo_config_init(&config, offsetof(rondo_config, device));
  config.rank = 0;
  config.world_size = 1;
  expect_ok(rondo_create(&world, &config), "an older program gets no device");

  rondo_call_options_init(&options, sizeof options);
  expect(options.stream == NULL, "no stream unless it is asked for");
  expect_ok(rondo_barrier(world, &options), "a barrier on the host");
  options.stream = &options;
  expect_refused(rondo_barrier(world, &options), "on a device");

  void* memory = &options;
  expect(rondo_device_alloc(16, 4711, &memory) == RONDO_UNAVAILABLE && memory == NULL,
         "memory of a device that is not there");
  expect_ok(rondo_device_free(NULL), "null is freed");
  expect(rondo_device_free(&options) == RONDO_INVALID_ARGUMENT, "memory that is not a device's");
  expect_refused(rondo_register_device_memory(world, &options, 1), "not on a device");
  expect(rondo_unregister_device_memory(world, &options) == RONDO_INVALID_ARGUMENT,
         "unregistering without a device");
  expect(rondo_register_device_memory(NULL, &options, 1) == RONDO_INVALID_ARGUMENT,
         "no communicator");
  rondo_destroy(world);
  return 0;
}
