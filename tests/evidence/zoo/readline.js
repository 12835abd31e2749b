// SPDX-License-Identifier: Apache-2.0
const prompt = require('readline').createInterface({ input: process.stdin, output: process.stdout });
prompt.question('Project name? ', () => prompt.close());
