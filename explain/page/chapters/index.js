// The chapters, in order.
import {chapter as bill} from "./bill.js";
import {chapter as machine} from "./machine.js";
import {chapter as overlap} from "./overlap.js";
import {chapter as ring} from "./ring.js";
import {chapter as scaling} from "./scaling.js";
import {chapter as wrong} from "./wrong.js";

export const chapters = [ring, bill, machine, overlap, scaling, wrong];
