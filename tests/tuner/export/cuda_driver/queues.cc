// The driver holds its lock around all that it calls here. Tests read the reports while nobody else calls it.
#include "queues.h"

#include <algorithm>
#include <string>
#include <utility>

namespace {

std::string launches, branches;  // what was computed, a line for each kernel

void compute(const Launch &launch) {
  std::vector<void *> values;
  for (const auto &value : launch.values) values.push_back(const_cast<unsigned char *>(value.data()));
  run_grid(launch.groups, launch.items, launch.kernel->waits,
           [&] { launch.kernel->call(launch.kernel->function, values.data()); });
}

void report(const Item &item, int launches_before) {
  const Launch &launch = *item.launch;
  auto text = [](const Index &i) {
    return std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z);
  };
  launches += std::string(launch.kernel->name) + " " + text(launch.groups) + " " + text(launch.items) + "\n";
  branches += std::to_string(item.stream) + " " + std::to_string(launches_before) + "\n";
}

}  // namespace

int next_number() {
  static int items;
  return items++;
}

void append(Stream &stream, Item item) {
  item.number = next_number();
  item.stream = stream.number;
  if (stream.last) item.after.push_back(stream.last);
  stream.last = std::make_shared<Item>(std::move(item));
  if (stream.capture) stream.capture->items.push_back(stream.last);
}

std::map<int, Work> needed(const Work &last) {
  std::map<int, Work> found;
  std::vector<Work> left{last};
  while (!left.empty()) {
    Work item = left.back();
    left.pop_back();
    if (!item || item->done || !found.emplace(item->number, item).second) continue;
    left.insert(left.end(), item->after.begin(), item->after.end());
  }
  return found;
}

void run(const Work &last) {
  std::map<int, Work> all = needed(last), left = all;
  for (const auto &[number, item] : all) {
    int before = -1;
    for (const auto &[other, needed_item] : needed(item)) before += needed_item->launch != nullptr;
    if (item->launch) report(*item, before);
  }
  while (!left.empty()) {
    auto next = left.rbegin();
    auto waits = [](const Work &item) { return !item->done; };
    while (std::any_of(next->second->after.begin(), next->second->after.end(), waits)) ++next;
    Item &item = *next->second;
    if (item.work) item.work();
    if (item.launch) compute(*item.launch);
    item.done = true;
    left.erase(item.number);
  }
  for (const auto &[number, item] : all) item->after.clear();
}

// ---- Reports

extern "C" {

static const char *taken(std::string &lines) {
  static std::map<std::string *, std::string> told;
  return (told[&lines] = std::exchange(lines, "")).c_str();
}

// What was computed since the last call, in the order in which it was launched: a kernel's name, groups and items on each
// line.
const char *emulated_launches() { return taken(launches); }

// The same launches: the number of the stream, and how many other launches had to be done before, since somebody waited.
const char *emulated_branches() { return taken(branches); }
}
