// The headers of nearly every test, compiled once. A test still includes what it uses.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/harness/catch.hpp"
