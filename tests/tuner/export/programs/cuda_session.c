/* Runs launches that no small network has, on tables of its own: with numbers as arguments, with more shared memory than a
 * group may have without asking, and in a stage of two groups. The driver is the argument. */
#include <stdio.h>

#include "device.h"

enum { COUNT = 8 };

static const unsigned char code[] = "scale";
static const Code codes[] = {{code, sizeof code, "sm_53"}};
static const Buffer buffers[] = {{0, COUNT * sizeof(float), 0}, {64, sizeof(float), 1}};
/* out, the factor, the first item, and the 32 bits of 0.5f or -3.0f */
static const Argument arguments[] = {
    {0, 0, 0}, {1, 0, 0}, {-1, 4, 0}, {-1, 4, 0x3f000000u}, {0, 0, 0}, {1, 0, 0}, {-1, 4, 4}, {-1, 4, 0xc0400000u},
    {0, 0, 0}, {1, 0, 0}, {-1, 4, 0}, {-1, 4, 0x3f000000u}, {0, 0, 0}, {1, 0, 0}, {-1, 4, 4}, {-1, 4, 0xc0400000u},
};
static const Launch launches[] = {
    {0, "scale", {2, 1, 1}, {4, 1, 1}, 0, 0, 4},
    {0, "scale", {1, 1, 1}, {2, 2, 1}, 64 << 10, 4, 4},
    {0, "scale", {1, 1, 1}, {2, 2, 1}, 0, 8, 4},
    {0, "scale", {1, 1, 1}, {2, 2, 1}, 0, 12, 4},
};
static const Rows groups[] = {{0, 2}, {2, 1}, {3, 1}, {1, 1}};
static const Rows stages[] = {{0, 1}, {1, 2}, {3, 1}};
static const Rows spans[] = {{0, 2}, {2, 1}};
static const DeviceTables tables = {codes, 1, buffers, 2, arguments, 16, launches, 4, groups, stages, 2, spans, 2, 0};

static int check(Session *session) {
  float given[COUNT], values[COUNT];
  for (int i = 0; i < COUNT; i++) given[i] = (float)i;
  if (edgetune_session_write(session, 0, given, sizeof given, 0)) return 1;
  if (edgetune_session_launch(session, 0) || edgetune_session_launch(session, 1)) return 2;
  if (edgetune_session_read(session, 0, values, sizeof values)) return 3;
  for (int i = 0; i < COUNT; i++) {
    float wanted = 2 * (float)i + 0.5f;
    if (i < 4) wanted = 2 * wanted + 0.5f;
    for (int again = 0; i >= 4 && again < 3; again++) wanted = 2 * wanted - 3; /* a launch in both spans, and a group */
    if (values[i] != wanted) return 4;
  }
  return 0;
}

int main(int argc, char **argv) {
  static _Alignas(64) unsigned char weights[128];
  *(float *)(weights + 64) = 2;
  const Place place = {0, argc == 2 ? argv[1] : 0, 0};
  Device *device = 0;
  int status = edgetune_device_open(&tables, weights, &place, &device);
  for (int plain = 0; !status && plain < 2; plain++) {
    Session *session = 0;
    status = edgetune_session_open(device, plain, &session);
    if (!status) status = check(session);
    edgetune_session_close(session);
  }
  if (status) printf("status %d: %s\n", status, edgetune_device_said());
  edgetune_device_close(device);
  return status;
}
