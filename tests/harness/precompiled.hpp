// What nearly every test includes, compiled once. A test includes what it uses all the same.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/harness/catch.hpp"
