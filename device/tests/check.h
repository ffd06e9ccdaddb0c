// The little a test needs: checks that say where they failed, and an exit code.
#pragma once

#include <cstdio>

namespace hexgraft {

inline int& failures() {
  static int count = 0;
  return count;
}

}  // namespace hexgraft

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      ++hexgraft::failures();                                                        \
    }                                                                                \
  } while (false)

#define REPORT() (hexgraft::failures() == 0 ? 0 : 1)
