// Streams of the stand-in for Nvidia's driver: what is put into them, captured as a graph, and done when somebody waits.
#ifndef EMULATED_QUEUES_H_
#define EMULATED_QUEUES_H_

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuda.h"

struct Launch {
  const Kernel *kernel;
  Index groups, items;
  std::vector<std::vector<unsigned char>> values;
};
// A copy, a launch, or neither: then it only waits for what is `after`. Items are numbered as they come.
struct Item {
  std::function<void()> work;
  std::shared_ptr<Launch> launch;
  std::vector<std::shared_ptr<Item>> after;
  int stream = 0, number = 0;
  bool done = false;
};
using Work = std::shared_ptr<Item>;
struct Graph {
  std::vector<Work> items;
  bool capturing = true;
};
// `last` is the last item of the stream, or while it is captured, of the graph. Then `before` is that of the stream.
struct Stream {
  int number;
  Work last, before;
  std::shared_ptr<Graph> capture;
};

// Return the number of the next item.
int next_number();

// Put an item into a stream, or into the graph that it is captured as.
void append(Stream &stream, Item item);

// Return all that has to be done before an item, and the item, by number.
std::map<int, Work> needed(const Work &last);

// Do all that an item needs, the last that came first, and report it as it came.
void run(const Work &last);

#endif
