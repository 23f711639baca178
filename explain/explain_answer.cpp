// explain-answer: reads a request of the page on each line of stdin and prints its answer, natively. For tests, and for
// looking at what the page sees.
#include <iostream>
#include <string>

#include "explain/answer.hpp"

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << rondo::explain::answer(line) << '\n';
  }
  std::cout.flush();
  return std::cout ? 0 : 1;
}
