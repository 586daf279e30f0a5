/* A stage of a network: a packed function of TVM's that calls groups of kernels at the same time.
 *
 * Arguments: the number of groups; of every group its work and its number of kernels; of every kernel the number of its
 * arguments, its name (for those who watch), the function and its arguments. All numbers are from 1 on.
 *
 * An error of a kernel ends its group. It is raised when all groups have ended: that of the first that has one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#include "pool.h"

#define MOST_GROUPS 256

typedef struct {
  const TVMFFIAny* calls; /* what behind the number of kernels comes */
  int kernels;
  int failed;
  TVMFFIObjectHandle error; /* of the thread that ran the group */
} Part;

/* TVM's library is in the process when its modules are; this one is loaded without it, too. */
static void* tvm(const char* name) { return dlsym(RTLD_DEFAULT, name); }

static void drop(TVMFFIObjectHandle object) {
  int (*release)(TVMFFIObjectHandle) = (int (*)(TVMFFIObjectHandle))tvm("TVMFFIObjectDecRef");
  if (object && release) release(object);
}

static int fail(const char* kind, const char* message) {
  void (*raise)(const char*, const char*) = (void (*)(const char*, const char*))tvm("TVMFFIErrorSetRaisedFromCStr");
  if (raise) raise(kind, message);
  return -1;
}

static int call(TVMFFIObjectHandle function, const TVMFFIAny* arguments, int count) {
  TVMFFIFunctionCell* cell = (TVMFFIFunctionCell*)((char*)function + sizeof(TVMFFIObject));
  TVMFFIAny result;
  memset(&result, 0, sizeof result);
  int status = cell->safe_call(function, arguments, count, &result);
  if (!status && result.type_index >= kTVMFFIStaticObjectBegin) drop(result.v_obj);
  return status;
}

static void run_group(int group, void* argument) {
  Part* part = (Part*)argument + group;
  const TVMFFIAny* at = part->calls;
  for (int k = 0; k < part->kernels && !part->failed; k++) {
    int count = (int)at[0].v_int64;
    part->failed = call(at[2].v_obj, at + 3, count);
    at += 3 + count;
  }
  if (part->failed) {
    void (*take)(TVMFFIObjectHandle*) = (void (*)(TVMFFIObjectHandle*))tvm("TVMFFIErrorMoveFromRaised");
    if (take) take(&part->error);
  }
}

static int is_number(const TVMFFIAny* at, const TVMFFIAny* end) {
  return at < end && at->type_index == kTVMFFIInt && at->v_int64 > 0 && at->v_int64 <= INT32_MAX;
}

/* What is behind the group that begins at `at`; NULL where it is none. */
static const TVMFFIAny* read_group(const TVMFFIAny* at, const TVMFFIAny* end, int* work, Part* part) {
  if (!is_number(at, end) || !is_number(at + 1, end)) return 0;
  *work = (int)at[0].v_int64;
  part->kernels = (int)at[1].v_int64;
  part->calls = at += 2;
  part->failed = 0;
  part->error = 0;
  for (int k = 0; k < part->kernels; k++) {
    if (!is_number(at, end) || end - at < 3 + at->v_int64 || at[2].type_index != kTVMFFIFunction) return 0;
    at += 3 + at->v_int64;
  }
  return at;
}

/* A TVMFFISafeCallType. */
int edgetune_stage(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  (void)self;
  const TVMFFIAny *at = arguments + 1, *end = arguments + count;
  int work[MOST_GROUPS];
  Part parts[MOST_GROUPS];
  int groups = is_number(arguments, end) && arguments->v_int64 <= MOST_GROUPS ? (int)arguments->v_int64 : 0;
  for (int g = 0; g < groups && at; g++) at = read_group(at, end, &work[g], &parts[g]);
  if (!groups || at != end) return fail("ValueError", "a stage's arguments are not groups of kernels");
  edgetune_together(groups, work, run_group, parts);
  result->type_index = kTVMFFINone;
  Part* first = 0;
  for (int g = groups - 1; g >= 0; g--) {
    if (!parts[g].failed) continue;
    if (first) drop(first->error);
    first = &parts[g];
  }
  if (!first) return 0;
  if (!first->error) return fail("RuntimeError", "a kernel of a stage failed");
  void (*raise)(TVMFFIObjectHandle) = (void (*)(TVMFFIObjectHandle))tvm("TVMFFIErrorSetRaised");
  raise(first->error);
  drop(first->error);
  return -1;
}
