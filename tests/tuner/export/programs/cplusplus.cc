// Uses the network from C++: owners close what they open, and statuses become exceptions.
#include <cstdio>
#include <string>
#include <vector>

#include "tiny.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const tiny::Weights weights = tiny::Weights::open(argv[1], TINY_SHARED);
  tiny::Network network(weights), other(weights, {1, 1, 1, nullptr, nullptr, nullptr, 0, 0, nullptr, nullptr, 0});
  std::vector<float> in(tiny_inputs[0].bytes / sizeof(float), 0.5f);
  std::vector<float> out(tiny_outputs[0].bytes / sizeof(float)), again(out.size(), -1.0f);
  const void* inputs[] = {in.data()};
  void* outputs[] = {out.data()};
  void* agains[] = {again.data()};
  network.run(inputs, outputs);
  other.run(inputs, agains);
  if (out != again || network.entries(0) != tiny_outputs[0].shape[0]) return 3;
  try {
    tiny::Weights::open("/nonexistent/tiny.weights");
  } catch (const tiny::Error& error) {
    return error.status == TINY_NO_FILE && std::string(error.what()) == tiny_text(TINY_NO_FILE) ? 0 : 4;
  }
  return 5;
}
