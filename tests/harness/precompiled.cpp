// Compiles precompiled.hpp; a program without a test.
